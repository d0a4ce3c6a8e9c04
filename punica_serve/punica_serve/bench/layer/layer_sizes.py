"""The sections and sizes of `bench layer`. Free of torch, for the command line's help."""

from enum import StrEnum
from typing import NamedTuple


class LayerSection(StrEnum):
    """The sections in the order they run; the figure is that of Punica (MLSys 2024)."""

    PROJECTIONS = "projections"
    PREFILLS = "prefills"
    FIGURE10 = "figure10"


class LayerSizes(NamedTuple):
    """Sizes that the options set."""

    shapes: tuple[str, ...]
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    #: Batch sizes of the seven projections.
    projection_batches: tuple[int, ...]
    #: Prompts of steps with a prefill, and the decodes beside each.
    prompts: tuple[int, ...]
    beside_prefill: int
    layers: int
    replays: int


#: The paper's.
GPU_SIZES = LayerSizes(
    ("llama-2-7b", "llama-2-13b"), (512, 2048), (1, 2, 4, 8, 16, 32), (32, 64), (512, 2048), 31, 8, 7
)
#: A CPU checks layers, and gives no figures. All of it takes about a minute.
CPU_SIZES = LayerSizes(("llama-2-7b",), (128,), (1, 4), (4,), (64,), 3, 1, 1)
#: Larger ones take a CPU too long.
LARGEST_CPU_SIZES = CPU_SIZES._replace(contexts=(1024,), batches=(32,), prompts=(256,), layers=2, replays=3)
