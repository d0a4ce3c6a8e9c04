"""The sections and sizes of `bench layer`. Free of torch, for the command line's help."""

from enum import StrEnum
from typing import NamedTuple


class LayerSection(StrEnum):
    """The sections in the order they run; the figure is that of Punica (MLSys 2024)."""

    PROJECTIONS = "projections"
    PREFILLS = "prefills"
    LORA_PARTS = "lora-parts"
    FIGURE10 = "figure10"


class LayerSizes(NamedTuple):
    """Sizes that the options set."""

    shapes: tuple[str, ...]
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    #: Batch sizes of the seven projections.
    projection_batches: tuple[int, ...]
    #: Batch sizes of LoRA by part.
    part_batches: tuple[int, ...]
    #: Prompts of steps with a prefill, and the decodes beside each.
    prompts: tuple[int, ...]
    beside_prefill: int
    layers: int
    replays: int


#: The paper's, and larger batches and prompts for what LoRA adds.
GPU_SIZES = LayerSizes(
    shapes=("llama-2-7b", "llama-2-13b"),
    contexts=(512, 2048),
    batches=(1, 2, 4, 8, 16, 32),
    projection_batches=(32, 64),
    part_batches=(64, 128, 256),
    prompts=(512, 1024, 2048),
    beside_prefill=31,
    layers=8,
    replays=7,
)
#: A CPU checks layers, and gives no figures. All of it takes about a minute.
CPU_SIZES = LayerSizes(
    shapes=("llama-2-7b",),
    contexts=(128,),
    batches=(1, 4),
    projection_batches=(4,),
    part_batches=(4,),
    prompts=(64,),
    beside_prefill=3,
    layers=1,
    replays=1,
)
#: Larger ones take a CPU too long.
LARGEST_CPU_SIZES = CPU_SIZES._replace(contexts=(1024,), batches=(32,), prompts=(256,), layers=2, replays=3)
