"""The config section `dummy_adapters`: adapters without files, for load tests and simulations."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from punica_serve.base_model.lora_layout import MAX_LORA_RANK
from punica_serve.config.fields import ConfigModel

#: Each takes 600 bytes of every process that reads the config.
_MAX_COUNT = 1_000_000


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


_Rank = Annotated[int, Field(strict=True, ge=1, le=MAX_LORA_RANK)]


class DummyAdaptersConfig(ConfigModel):
    """Adapters that have a shape but no files, called dummy-0, dummy-1 and so on: for load tests and simulations."""

    count: Annotated[int, Field(strict=True, ge=0, le=_MAX_COUNT)] = 0
    #: Rank of all adapters, or a list of ranks, each of which as many adapters have, in a fixed shuffled order. A rank
    #: that is listed twice is twice as frequent.
    rank: Annotated[tuple[_Rank, ...], Field(min_length=1), BeforeValidator(_listed)] = (16,)
    #: Linear modules that have LoRA weights: q_proj, k_proj and v_proj, or all seven.
    modules: Literal["qkv", "all"] = "all"
