"""The engine's limits that let in adapters which are known before it starts, by their configurations."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from punica_serve.adapters.folder import CONFIG_NAME
from punica_serve.adapters.peft_config import PeftConfig, parse_peft_config
from punica_serve.base_model.lora_layout import MAX_LORA_RANK, USUAL_LIMITS, VOCABULARY_GROUPS, LoraLimits
from punica_serve.errors import AdapterRejected

_VOCABULARY = tuple(name for names in VOCABULARY_GROUPS.values() for name in names)


def limits_for(folders: Iterable[Path]) -> LoraLimits:
    """The usual limits, widened where these adapters need it, in case of doubt."""
    configs = list(readable_configs(folders))
    rank = max((highest_rank(config) for config in configs), default=1)
    return LoraLimits(
        max_rank=min(MAX_LORA_RANK, max(USUAL_LIMITS.max_rank, rank)),
        vocabulary=any(map(_may_update_vocabulary, configs)),
    )


def limit_settings(folders: Iterable[Path]) -> dict[str, int | bool]:
    """The settings of `engine` that differ from their defaults for these adapters."""
    limits = limits_for(folders)
    settings: dict[str, int | bool] = {}
    if limits.max_rank != USUAL_LIMITS.max_rank:
        settings["max_lora_rank"] = limits.max_rank
    if limits.vocabulary:
        settings["lora_vocabulary"] = True
    return settings


def readable_configs(folders: Iterable[Path]) -> Iterator[PeftConfig]:
    """Those that can be read; the others are told of where they are registered."""
    for folder in folders:
        try:
            yield parse_peft_config((folder / CONFIG_NAME).read_bytes())
        except (OSError, AdapterRejected):
            continue


def highest_rank(config: PeftConfig) -> int:
    """The highest rank that a configuration names."""
    return max([config.r, *(config.rank_pattern or {}).values()])


def _may_update_vocabulary(config: PeftConfig) -> bool:
    """Whether its targets, names or an expression, name the embedding or the head."""
    targets = config.target_modules or ""
    text = targets if isinstance(targets, str) else " ".join(targets)
    return any(name in text for name in _VOCABULARY)
