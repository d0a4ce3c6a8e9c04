"""What the benchmarks of kernels and of layers share: a device under measurement, and a bar that counts cells."""

from collections.abc import Sequence

import torch
from rich.progress import Progress, TaskID

from punica_kernels.bench.timing import Call, graph_us
from punica_serve.model_config import ModelDtype


class Bench:
    """A device, and how long a cell is measured. On a GPU it becomes torch's current one."""

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
        """What is measured runs, in a title's words."""
        return "in a CUDA graph" if self.device.type == "cuda" else "call by call"

    def begin(self, section: str, num_cells: int) -> None:
        """A progress bar of its own for each section."""
        self._task = self._progress.add_task(section, total=num_cells)

    def measure_us(self, calls: Sequence[Call]) -> float:
        """Microseconds of one of the calls, all of which share a graph; one step of the progress bar."""
        microseconds = graph_us(calls, self.device, self._num_replays)
        if self._task is not None:
            self._progress.advance(self._task)
        return microseconds
