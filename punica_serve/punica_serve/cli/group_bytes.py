"""The lines of `config check` about groups: the bytes of a rank, and what does not divide."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from punica_serve.numbers import counted

if TYPE_CHECKING:
    from punica_serve.base_model.model_config import ModelConfig
    from punica_serve.config.cluster import ClusterConfig
    from punica_serve.config.engine_section import EngineConfig

_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def group_lines(config: "ClusterConfig", model: "ModelConfig") -> Iterator[str]:
    """The bytes that each rank of a config's groups holds, and what its ranks don't divide or do without.

    Raises ConfigError, by name, for what such a group can't divide.
    """
    from punica_serve.adapters.expected_rank import with_expected_rank

    hosts = config.runner.hosts
    on_hosts = f" on {hosts} hosts, whose exchanges are NCCL's or gloo's" if hosts > 1 else ""
    yield from rank_lines(with_expected_rank(config), model, config.runner.group_size, on_hosts)
    if hosts > 1:
        encrypted = ", also with `tls`" if config.tls else ""
        yield f"what the group's hosts send each other is not encrypted{encrypted}; its network must be trusted"


def rank_lines(engine: "EngineConfig", model: "ModelConfig", size: int, on_hosts: str = "") -> Iterator[str]:
    """The same for an engine's settings and a group of so many devices."""
    from punica_serve.base_model.memory_budget import (
        kv_bytes_per_token,
        num_weights,
        pool_num_bytes,
        undivided_pool_bytes,
    )
    from punica_serve.base_model.rank import Rank

    share, pages, limits = engine.share_of(model, Rank(0, size)), engine.lora_pages, engine.lora_limits
    itemsize = engine.value_bytes_of(model)
    pool = pool_num_bytes(share, pages, itemsize, limits)
    undivided = undivided_pool_bytes(share, pages, itemsize, limits)
    weights, all_weights = (shown_bytes(num_weights(each) * itemsize) for each in (share, model))
    token, whole_token = (shown_bytes(kv_bytes_per_token(each, itemsize)) for each in (share, model))
    yield (
        f"group of {size}{on_hosts}: each rank has {weights} of {all_weights} of weights,"
        f" {shown_bytes(pool)} of LoRA pages ({shown_bytes(undivided)} whole on every rank,"
        f" {shown_bytes(pool - undivided)} divided), and {token} of {whole_token} of KvCache a token"
    )
    if (heads := model.num_key_value_heads) < size:
        yield f"not divided by {size}: {counted(heads, 'key-value head')}, each on {size // heads} ranks"
    if engine.divides_lora and engine.cold_start == "cpu_assist":
        yield (
            f"`engine.cold_start: {engine.cold_start}` goes on without CPU processes: ranks add up x A"
            " (`engine.divide_lora_from`)"
        )


def shown_bytes(num_bytes: int) -> str:
    """In the largest unit that leaves a number of 1 or more."""
    name, unit = next((each for each in _UNITS if num_bytes >= each[1]), ("bytes", 1))
    return f"{num_bytes / unit:.4g} {name}"
