"""Adapters in the host memory of all ranks of a group, each of which makes its own share of them."""

from collections.abc import Callable
from typing import Literal

from punica_serve.adapters.dummy import dummy_adapters
from punica_serve.bench.driver import preload
from punica_serve.config.dummy_adapters_section import DummyAdaptersConfig
from punica_serve.engine.engine import Engine
from punica_serve.protocol import AdapterRef

#: Adapters that are loaded together.
_AT_A_TIME = 32
#: For these to be made and copied. One of rank 16 for Llama-2-70B is 400 MB, of which each rank draws all.
_DEADLINE_S = 300.0


def fill_group(
    engine: Engine,
    count: int,
    rank: int,
    on_made: Callable[[], None],
    projections: Literal["qkv", "all"] = "all",
) -> list[AdapterRef]:
    """Loads ``count`` dummy adapters once, after which every rank has them in host memory, as far as they fit.

    Raises RequestFailed if one can't be loaded in time.
    """
    config = DummyAdaptersConfig(count=count, rank=(rank,), modules=projections)
    refs = list(dummy_adapters(config, engine.model_config).values())
    for first in range(0, count, _AT_A_TIME):
        some = refs[first : first + _AT_A_TIME]
        preload(engine, some, _DEADLINE_S)
        for _ in some:
            on_made()
    return refs
