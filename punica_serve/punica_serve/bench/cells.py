"""Shared by the kernel and layer benchmarks: the measured device, and a progress bar of cells."""

from collections.abc import Sequence

import torch
from rich.progress import Progress, TaskID

from punica_kernels.bench.timing import Call, graph_us
from punica_serve.base_model.model_config import ModelDtype
from punica_serve.errors import ConfigError


def check_cpu_size(option: str, value: int, largest: int) -> None:
    """Raises ConfigError for a size beyond the largest that ends on a CPU in good time."""
    if value > largest:
        message = f"`{option}` is {value}; on a CPU, which only checks the operators, it may be at most {largest}"
        raise ConfigError(f"{message}: lower it, or name a GPU by `--device`", param=option.removeprefix("--"))


class Bench:
    """A device, and how long a cell is measured. A GPU becomes torch's current device."""

    def __init__(self, device: torch.device, dtype: ModelDtype, num_replays: int, progress: Progress) -> None:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        self.device = device
        self.dtype: torch.dtype = getattr(torch, dtype)
        self._num_replays = num_replays
        self._progress = progress
        self._task: TaskID | None = None

    @property
    def how(self) -> str:
        """How the measured calls run, for titles."""
        return "in a CUDA graph" if self.device.type == "cuda" else "call by call"

    def begin(self, section: str, num_cells: int) -> None:
        """Starts a new progress bar for a section."""
        self._task = self._progress.add_task(section, total=num_cells)

    def measure_us(self, calls: Sequence[Call]) -> float:
        """Microseconds of one of the calls, which share a graph. Advances the progress bar by one."""
        microseconds = graph_us(calls, self.device, self._num_replays)
        if self._task is not None:
            self._progress.advance(self._task)
        return microseconds
