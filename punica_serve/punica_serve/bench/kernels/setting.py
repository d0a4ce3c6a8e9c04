"""Shared by all sections of `bench kernels`: the device, the operators' shape, the roofs, the progress bar."""

from dataclasses import dataclass
from functools import cached_property

import torch
from rich.progress import Progress

from punica_kernels.bench.timing import copy_bytes_per_s, empty_kernel_us, matmul_flop_per_s
from punica_serve.base_model.lora_layout import LORA_PAGE_RANKS
from punica_serve.base_model.model_config import ModelDtype
from punica_serve.bench.cells import Bench, check_cpu_size
from punica_serve.bench.kernels.operators import LayerCall, calls
from punica_serve.bench.kernels.sections import GPU_SIZES, LARGEST_CPU_SIZES
from punica_serve.bench.kernels.weights import PagedWeights
from punica_serve.bench.reference_figures import peers
from punica_serve.errors import ConfigError
from punica_serve.workload import Population

#: In the paper's order.
POPULATIONS = tuple(Population)
#: Width of an attention head; the heads divide the hidden size.
HEAD_DIM = 128


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """The options. The defaults are the sizes of the paper and the goals."""

    dtype: ModelDtype = "bfloat16"
    hidden_size: int = GPU_SIZES.hidden
    intermediate_size: int = GPU_SIZES.intermediate
    #: Layers with separate weights, which share a graph.
    num_layers: int = GPU_SIZES.layers
    #: Batch sizes of the figures.
    batch_sizes: tuple[int, ...] = GPU_SIZES.batches
    ranks: tuple[int, ...] = (8, 16, 32, 64)
    #: Rows of the prefill in the mixed batch.
    num_prefill_rows: int = 512
    num_replays: int = GPU_SIZES.replays

    def __post_init__(self) -> None:
        if self.hidden_size % HEAD_DIM:
            message = f"`--hidden` is {self.hidden_size}; it must be a multiple of {HEAD_DIM}, the width of a head"
            raise ConfigError(message, param="hidden")

    def check_cpu(self) -> None:
        """Raises ConfigError, by option, for sizes that take too long on a CPU."""
        largest = LARGEST_CPU_SIZES
        check_cpu_size("--hidden", self.hidden_size, largest.hidden)
        check_cpu_size("--intermediate", self.intermediate_size, largest.intermediate)
        check_cpu_size("--layers", self.num_layers, largest.layers)
        check_cpu_size("--replays", self.num_replays, largest.replays)
        check_cpu_size("--batch", self.max_batch_size, max(largest.batches))

    @property
    def max_batch_size(self) -> int:
        return max(self.batch_sizes)

    @property
    def match_peers(self) -> bool:
        """Whether these are the sizes and the dtype that the peers were measured with."""
        pair = peers().pair
        return self.hidden_size == pair.hidden_size and self.dtype == pair.dtype


class KernelBench(Bench):
    """A device, its roofs, and the operators' shape."""

    def __init__(self, settings: KernelSettings, device: torch.device, progress: Progress) -> None:
        super().__init__(device, settings.dtype, settings.num_replays, progress)
        self.settings = settings
        self.copy_bytes_per_s = copy_bytes_per_s(device, 1 << 30 if device.type == "cuda" else 1 << 24)
        self.empty_us = empty_kernel_us(device)

    @cached_property
    def flop_per_s(self) -> float:
        """The rate of a large product."""
        return matmul_flop_per_s(self.device, self.dtype, 8192 if self.device.type == "cuda" else 256)

    def floor_us(self, num_bytes: int, *, flop: int = 0, num_launches: int = 1) -> float:
        """The least microseconds of an operator with these bytes, operations and launches."""
        arithmetic_us = flop / self.flop_per_s * 1e6 if flop else 0.0
        return max(num_bytes / self.copy_bytes_per_s * 1e6, arithmetic_us, num_launches * self.empty_us)

    def weights(self, num_pages: int, **changes: object) -> PagedWeights:
        """Weights hidden_size -> r -> hidden_size, with ``changes``."""
        hidden = self.settings.hidden_size
        defaults = {"h_in": hidden, "h_out": hidden, "num_pages": num_pages, "num_layers": self.settings.num_layers}
        return PagedWeights(**{**defaults, "dtype": self.dtype, "device": self.device, **changes})  # type: ignore[arg-type]

    def pages_for(self, num_adapters: int, rank: int) -> int:
        return num_adapters * rank // LORA_PAGE_RANKS

    def time_us(self, call: LayerCall) -> float:
        """Microseconds of one call on one layer's weights. Advances the progress bar by one."""
        return self.measure_us(calls(call, self.settings.num_layers))
