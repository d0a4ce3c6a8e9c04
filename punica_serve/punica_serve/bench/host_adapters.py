"""Random adapters in the host memory of an engine, and of all ranks of a group, each of which makes its own share."""

from collections.abc import Callable
from typing import Literal

import torch

from punica_serve.adapters.dummy import dummy_adapters
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.bench.driver import preload
from punica_serve.bench.random_adapters import fill_host_cache
from punica_serve.config.dummy_adapters_section import DummyAdaptersConfig
from punica_serve.engine.engine import Engine
from punica_serve.protocol import AdapterRef

#: The projections that adapters change.
Projections = Literal["qkv", "all"]

#: Adapters that are loaded together.
_AT_A_TIME = 32
#: For these to be made and copied. One of rank 16 for Llama-2-70B is 400 MB, of which each rank draws all.
_DEADLINE_S = 300.0


def modules_of(projections: Projections, model: ModelConfig) -> tuple[str, ...]:
    """The linear modules that adapters of these projections change."""
    if projections == "all":
        return tuple(model.linear_shapes)
    return tuple(projection.name for projection in model.spec.group("qkv").projections)


def fill_ranks(
    engine: Engine,
    count: int,
    rank: int,
    dtype: torch.dtype,
    on_made: Callable[[], None],
    projections: Projections = "all",
) -> list[AdapterRef]:
    """``count`` adapters of one rank in the host memory of a device, or of all that a group has.

    Those of a group are on its devices too, as far as they fit. Raises ConfigError if a device's host cache is too
    small for them, RequestFailed if a group can't load one in time.
    """
    if engine.ranks:
        return _fill_group(engine, count, rank, on_made, projections)
    return fill_host_cache(engine, count, rank, dtype, on_made, modules_of(projections, engine.share))


def _fill_group(
    engine: Engine, count: int, rank: int, on_made: Callable[[], None], projections: Projections
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
