"""The sections, dtypes and sizes of `bench kernels`. Free of torch, for the command line's help."""

from enum import StrEnum


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


#: Batch sizes of the figures.
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
