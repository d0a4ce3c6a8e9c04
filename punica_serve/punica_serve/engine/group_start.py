"""Starts the ranks of a group, which meet before any of them loads anything."""

from collections.abc import Callable, Sequence

import torch

from punica_serve.base_model.model_config import read_model_config
from punica_serve.base_model.rank import Rank
from punica_serve.config.device_groups import ranks_of, why_no_group
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.ranks.group_settings import GroupSettings
from punica_serve.engine.ranks.rank_group import RankGroup
from punica_serve.engine.ranks.rank_hello import check_hellos, hello_of
from punica_serve.engine.ranks.rendezvous import join, leave_if_lost, open_port
from punica_serve.errors import ConfigError, PunicaError
from punica_serve.models.collectives import Collectives
from punica_serve.models.model_weights import checked_weights
from punica_serve.store.packed_folder import PackedCache


def devices_of(device: str) -> tuple[str, ...]:
    """The devices of a group, "cuda:0,cuda:1", or the one device. Raises ConfigError for a GPU named twice."""
    devices = ranks_of(device)
    if reason := why_no_group(devices):
        raise ConfigError(f"the group {device!r} {reason}", param="runner.devices")
    return devices


def start_group(
    config: EngineConfig,
    devices: Sequence[str],
    own: torch.device,
    settings: GroupSettings,
    packed_cache: PackedCache | None = None,
    on_loss: Callable[[PunicaError], None] | None = None,
) -> tuple[RankGroup, Collectives]:
    """Starts the ranks of all devices but the first, which is this process's ``own``; returns when all fit together.

    Raises ConfigError if they don't, ModelRejected for weights that can't be served, RankLost for a rank that is late
    or has died.
    """
    # Ranks on GPUs compile kernels between exchanges at the start; later on, graphs make these, without any timeout.
    exchange_timeout_s = settings.ready_timeout_s if own.type == "cuda" else settings.exchange_timeout_s
    options = {
        "engine-config": config.model_dump_json(),
        "log-level": settings.log_level,
        "log-format": settings.log_format,
        "ready-timeout-s": f"{settings.ready_timeout_s}",
        "exchange-timeout-s": f"{exchange_timeout_s}",
    }
    if packed_cache is not None:
        options |= {"cache-folder": f"{packed_cache.folder}", "cache-bytes": f"{packed_cache.budget_bytes}"}
    _check_model(config, len(devices))
    store = open_port(settings.ready_timeout_s)
    group = RankGroup(devices, settings, options, on_loss)
    try:
        check_hellos({f"rank 0 ({devices[0]})": hello_of(config, own, len(devices)), **group.hellos()})
        group.welcome(store.port)
        return group, join(store, own, Rank(0, len(devices)), exchange_timeout_s)
    except BaseException:
        group.kill()
        leave_if_lost(own)
        raise


def _check_model(config: EngineConfig, num_ranks: int) -> None:
    """Refuses what no rank could serve before any is started. Raises ConfigError and ModelRejected."""
    share = config.share_of(read_model_config(config.model), Rank(0, num_ranks))
    if config.load_format == "safetensors":
        checked_weights(config.model, share)
