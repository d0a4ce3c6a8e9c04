"""The sections, dtypes and sizes of `bench kernels`. Free of torch, for the command line's help."""

from enum import StrEnum
from typing import NamedTuple


class Section(StrEnum):
    """The sections in the order they run; figures are those of Punica (MLSys 2024)."""

    PAIR = "pair"
    ROOFLINE = "figure7"
    COMPARISON = "figure8"
    RANKS = "figure9"
    ADD_LORA = "add-lora"
    FUSED = "fused"
    LINEAR = "linear"
    PAGED_ATTENTION = "paged-attention"
    SAMPLING = "sampling"
    LAYOUTS = "layouts"
    LORA_GROUPS = "lora-groups"


class HalfDtype(StrEnum):
    """The 16-bit data types that models are served in on a GPU."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Sizes(NamedTuple):
    """Sizes that the options set."""

    hidden: int
    intermediate: int
    layers: int
    replays: int
    batches: tuple[int, ...]


#: The sizes of the figures and the goals.
GPU_SIZES = Sizes(4096, 11008, 32, 7, (1, 2, 4, 8, 16, 32, 64))
#: A CPU checks operators, and gives no figures. All sections take about a minute.
CPU_SIZES = Sizes(256, 512, 1, 1, (1, 8))
#: Larger ones take a CPU too long.
LARGEST_CPU_SIZES = Sizes(1024, 4096, 2, 3, (32,))
