"""The engine's settings as a cluster's workers get them: the rank that `auto` settings make room for, and the batch."""

from collections.abc import Iterable
from pathlib import Path

from punica_serve.adapters.folder import CONFIG_NAME
from punica_serve.adapters.peft_config import parse_peft_config
from punica_serve.base_model.lora_layout import MAX_LORA_RANK
from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.config.fields import AUTO_BATCH
from punica_serve.errors import AdapterRejected
from punica_serve.performance.auto_batch import AutoBatch, auto_batch_of


def engine_of(config: ClusterConfig) -> EngineConfig:
    """The engine's settings, with the highest rank of the file's adapters for those that are `auto`, and a number for
    `max_batch_size: auto`. Raises ConfigError if that has no profile.
    """
    return _with_rank(config).model_copy(update={"max_batch_size": batch_of(config).size})


def batch_of(config: ClusterConfig) -> AutoBatch:
    """The batch size of a cluster's engine, and what limits it. Raises ConfigError if `auto` has no profile."""
    return auto_batch_of(config, _with_rank(config))


def _with_rank(config: ClusterConfig) -> EngineConfig:
    engine = config.engine
    if None not in (engine.num_lora_pages, engine.host_cache_bytes) and engine.max_batch_size != AUTO_BATCH:
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
