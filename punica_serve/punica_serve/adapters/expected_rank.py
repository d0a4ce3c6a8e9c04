"""The engine's settings as a cluster's workers get them: the rank that `auto` settings make room for, and the batch."""

from punica_serve.adapters.adapter_limits import highest_rank, readable_configs
from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.config.fields import AUTO_BATCH
from punica_serve.performance.auto_batch import AUTO_SIZES, AutoBatch, auto_batch_of, auto_times, step_ms


def engine_of(config: ClusterConfig) -> EngineConfig:
    """The engine's settings, with the highest rank of the file's adapters for those that are `auto`, and a number for
    `max_batch_size: auto`. Raises ConfigError if that has no profile.
    """
    return with_expected_rank(config).model_copy(update={"max_batch_size": batch_of(config).size})


def batch_of(config: ClusterConfig) -> AutoBatch:
    """The batch size of a cluster's engine, and what limits it. Raises ConfigError if `auto` has no profile."""
    return auto_batch_of(config, with_expected_rank(config))


def auto_steps_ms(config: ClusterConfig) -> dict[int, float]:
    """A decode step of each size that ``auto`` may take, by its profile. Raises ConfigError without one."""
    engine, times = with_expected_rank(config), auto_times(config)
    return {size: step_ms(size, engine, times) for size in AUTO_SIZES}


def with_expected_rank(config: ClusterConfig) -> EngineConfig:
    """The engine's settings, with the highest rank of the file's adapters if a setting depends on it."""
    engine = config.engine
    is_auto = None in (engine.num_lora_pages, engine.host_cache_bytes) or engine.max_batch_size == AUTO_BATCH
    if not is_auto and engine.divide_lora_from is None:
        return engine
    dummies = config.dummy_adapters
    ranks = [engine.expected_lora_rank, *map(highest_rank, readable_configs(config.adapters.values()))]
    ranks += dummies.rank if dummies.count else ()
    return engine.model_copy(update={"expected_lora_rank": min(engine.max_lora_rank, max(ranks))})
