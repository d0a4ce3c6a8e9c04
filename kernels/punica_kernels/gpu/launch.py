"""Limits of the device that grids are chosen by."""

from functools import cache

import torch

#: CUDA's limit on a grid's y dimension, along which a step's rows are laid out.
MAX_GRID_Y = 65_535


@cache
def num_multiprocessors(device: torch.device) -> int:
    """Those of a CUDA device."""
    return torch.cuda.get_device_properties(device).multi_processor_count
