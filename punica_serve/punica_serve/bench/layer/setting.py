"""The options of `bench layer`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from rich.progress import Progress

from punica_serve.base_model.lora_layout import USUAL_LIMITS, LoraLimits
from punica_serve.base_model.model_config import ModelConfig, ModelDtype
from punica_serve.bench.cells import Bench, check_cpu_size
from punica_serve.bench.layer.layer_sizes import GPU_SIZES, LARGEST_CPU_SIZES
from punica_serve.engine.cuda.batch_bucket import BatchBucket
from punica_serve.errors import ConfigError
from punica_serve.workload import Population, counts


@dataclass(frozen=True, slots=True)
class LayerSettings:
    """The defaults are the paper's."""

    models: tuple[ModelConfig, ...]
    context_lengths: tuple[int, ...] = GPU_SIZES.contexts
    batch_sizes: tuple[int, ...] = GPU_SIZES.batches
    #: Batch sizes of the seven projections.
    projection_batch_sizes: tuple[int, ...] = GPU_SIZES.projection_batches
    #: Batch sizes of LoRA by part.
    part_batch_sizes: tuple[int, ...] = GPU_SIZES.part_batches
    #: Prompts of the sections with prefills, and the decodes beside each.
    prompt_lengths: tuple[int, ...] = GPU_SIZES.prompts
    num_beside_prefill: int = GPU_SIZES.beside_prefill
    rank: int = 16
    #: LoRA's tables have room for adapters within these.
    limits: LoraLimits = USUAL_LIMITS
    #: Layers with separate weights in one CUDA graph; results are means over them.
    num_layers: int = GPU_SIZES.layers
    num_replays: int = GPU_SIZES.replays
    dtype: ModelDtype = "bfloat16"

    def __post_init__(self) -> None:
        if self.rank > self.limits.max_rank:
            message = f"`--rank` is {self.rank}, and `--max-lora-rank` is {self.limits.max_rank}"
            raise ConfigError(f"{message}: lower one or raise the other", param="rank")

    def check_cpu(self) -> None:
        """Raises ConfigError, by option, for sizes that take too long on a CPU."""
        largest = LARGEST_CPU_SIZES
        check_cpu_size("--context", max(self.context_lengths), max(largest.contexts))
        batch_sizes = (*self.batch_sizes, *self.projection_batch_sizes, *self.part_batch_sizes)
        check_cpu_size("--batch", max(batch_sizes), max(largest.batches))
        check_cpu_size("--prompt", max(self.prompt_lengths), max(largest.prompts))
        check_cpu_size("--layers", self.num_layers, largest.layers)
        check_cpu_size("--replays", self.num_replays, largest.replays)


class LayerBench(Bench):
    """A device, and the layers to run on it."""

    def __init__(self, settings: LayerSettings, device: torch.device, progress: Progress) -> None:
        super().__init__(device, settings.dtype, settings.num_replays, progress)
        self.settings = settings

    def layer_us(self, call: Callable[[], object]) -> float:
        """Microseconds of one of the layers that the call runs. Advances the progress bar by one."""
        return self.measure_us([call]) / self.settings.num_layers


def adapters_of(population: Population | None, batch_size: int) -> list[int | None]:
    """Each row's adapter, with an adapter's rows adjacent; None is the backbone alone."""
    if population is None:
        return [None] * batch_size
    return [adapter for adapter, count in enumerate(counts(population, batch_size)) for _ in range(count)]


def decode_buckets(batch_sizes: Sequence[int]) -> list[BatchBucket]:
    """The buckets of decodes alone."""
    return [BatchBucket(0, batch_size) for batch_size in batch_sizes]
