"""The rank of adapters that `auto` settings make room for."""

from collections.abc import Iterable
from pathlib import Path

from punica_serve.adapters.folder import CONFIG_NAME
from punica_serve.adapters.peft_config import parse_peft_config
from punica_serve.base_model.lora_layout import MAX_LORA_RANK
from punica_serve.config.cluster import ClusterConfig, EngineConfig
from punica_serve.errors import AdapterRejected


def engine_of(config: ClusterConfig) -> EngineConfig:
    """The engine's settings, with the highest rank of the file's adapters for those that are `auto`."""
    engine = config.engine
    if engine.num_lora_pages is not None and engine.host_cache_bytes is not None:
        return engine
    dummies = config.dummy_adapters
    ranks = [engine.expected_lora_rank, *_ranks(config.adapters.values())]
    ranks += dummies.rank if dummies.count else ()
    return engine.model_copy(update={"expected_lora_rank": min(MAX_LORA_RANK, max(ranks))})


def _ranks(folders: Iterable[Path]) -> Iterable[int]:
    """Those that can be read; the others are told of where they are registered."""
    for folder in folders:
        try:
            config = parse_peft_config((folder / CONFIG_NAME).read_bytes())
        except (OSError, AdapterRejected):
            continue
        yield from (config.r, *(config.rank_pattern or {}).values())
