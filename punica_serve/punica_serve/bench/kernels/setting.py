"""What all sections of `bench kernels` share: the device, the shape of the operators, the roofs, the progress bar."""

from dataclasses import dataclass
from functools import cached_property

import torch
from rich.progress import Progress

from punica_kernels.bench.timing import copy_bytes_per_s, empty_kernel_us, matmul_flop_per_s
from punica_serve.bench.cells import Bench
from punica_serve.bench.kernels import peers
from punica_serve.bench.kernels.operators import LayerCall, calls
from punica_serve.bench.kernels.sections import BATCH_SIZES
from punica_serve.bench.kernels.weights import PagedWeights
from punica_serve.errors import ConfigError
from punica_serve.lora_layout import LORA_PAGE_RANKS
from punica_serve.model_config import ModelDtype
from punica_serve.workload import Population

#: The paper's order.
POPULATIONS = tuple(Population)
#: Of attention's heads, which share the hidden size.
HEAD_DIM = 128


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """What to measure, and how long. The defaults are the paper's and the goals' sizes."""

    dtype: ModelDtype = "bfloat16"
    hidden_size: int = 4096
    intermediate_size: int = 11008
    #: Layers of own weights, which share a graph.
    num_layers: int = 32
    #: Batch sizes of the figures.
    batch_sizes: tuple[int, ...] = BATCH_SIZES
    ranks: tuple[int, ...] = (8, 16, 32, 64)
    #: Rows of the prefill in the mixed batch.
    num_prefill_rows: int = 512
    num_replays: int = 7

    def __post_init__(self) -> None:
        if self.hidden_size % HEAD_DIM:
            message = f"`--hidden` is {self.hidden_size}; it must be a multiple of {HEAD_DIM}, the width of a head"
            raise ConfigError(message, param="hidden")

    @property
    def max_batch_size(self) -> int:
        return max(self.batch_sizes)

    @property
    def match_peers(self) -> bool:
        """Whether these are the sizes and the dtype that the peers were measured at."""
        return self.hidden_size == peers.HIDDEN_SIZE and self.dtype == peers.DTYPE


class KernelBench(Bench):
    """A device, its roofs, and the shape of the operators."""

    def __init__(self, settings: KernelSettings, device: torch.device, progress: Progress) -> None:
        super().__init__(device, settings.dtype, settings.num_replays, progress)
        self.settings = settings
        self.copy_bytes_per_s = copy_bytes_per_s(device, 1 << 30 if device.type == "cuda" else 1 << 24)
        self.empty_us = empty_kernel_us(device)

    @cached_property
    def flop_per_s(self) -> float:
        """Of a large product."""
        return matmul_flop_per_s(self.device, self.dtype, 8192 if self.device.type == "cuda" else 256)

    def floor_us(self, num_bytes: int, *, flop: int = 0, num_launches: int = 1) -> float:
        """Microseconds that no operator of these bytes, operations and launches is quicker than."""
        arithmetic_us = flop / self.flop_per_s * 1e6 if flop else 0.0
        return max(num_bytes / self.copy_bytes_per_s * 1e6, arithmetic_us, num_launches * self.empty_us)

    def weights(self, num_pages: int, **changes: object) -> PagedWeights:
        """Weights hidden_size -> r -> hidden_size, unless changed."""
        hidden = self.settings.hidden_size
        defaults = {"h_in": hidden, "h_out": hidden, "num_pages": num_pages, "num_layers": self.settings.num_layers}
        return PagedWeights(**{**defaults, "dtype": self.dtype, "device": self.device, **changes})  # type: ignore[arg-type]

    def pages_for(self, num_adapters: int, rank: int) -> int:
        return num_adapters * rank // LORA_PAGE_RANKS

    def time_us(self, call: LayerCall) -> float:
        """Microseconds of one call on one layer's weights, and one step of the progress bar."""
        return self.measure_us(calls(call, self.settings.num_layers))
