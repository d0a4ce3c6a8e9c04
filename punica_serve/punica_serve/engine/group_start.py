"""Joins the ranks of a group, which meet before any of them loads anything."""

from collections.abc import Callable, Sequence

import torch
from torch._C._distributed_c10d import Store

from punica_serve.base_model.checkpoint import checked_weights
from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.rank import Rank
from punica_serve.config.device_groups import ranks_of, why_no_group
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.ranks.group_settings import GroupSettings
from punica_serve.engine.ranks.joining import Joining
from punica_serve.engine.ranks.nccl_version import warn_of_nccl
from punica_serve.engine.ranks.network_interface import interface_to
from punica_serve.engine.ranks.rank_group import RankGroup
from punica_serve.engine.ranks.rank_hello import check_hellos, hello_of
from punica_serve.engine.ranks.rank_loss import RankLost
from punica_serve.engine.ranks.rank_processes import RankProcesses
from punica_serve.engine.ranks.rendezvous import join, leave_if_lost, make_current, open_port
from punica_serve.errors import ConfigError, PunicaError
from punica_serve.models.collectives import Collectives
from punica_serve.process.start_clock import StartClock
from punica_serve.store.packed_folder import PackedCache

#: The leader waits for others, until they have come and until they are ready.
OTHERS_PHASE = "other ranks"


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
    others: GroupSettings | RankProcesses,
    packed_cache: PackedCache | None = None,
    on_loss: Callable[[PunicaError], None] | None = None,
    *,
    clock: StartClock,
) -> tuple[RankGroup, Joining]:
    """Joins this process, on its device ``own``, with the ranks of the other devices when all fit together.

    GPUs join while the caller goes on: weights take as long. This thread gets its GPU as the current one at once.
    ``others``: their processes, or the deadlines with which they are started. Raises ConfigError if they don't fit,
    ModelRejected for weights that can't be served, RankLost for a rank that is late or has died.
    """
    _check_model(config, len(devices))
    make_current(own)
    if isinstance(others, GroupSettings):
        others = RankProcesses(config, devices, others, packed_cache)
    group, settings = RankGroup(others, on_loss, clock.other_began), others.settings
    try:
        store = open_port(others.address, settings.ready_timeout_s)
        if others.has_other_hosts:
            warn_of_nccl(own, cuda_graphs=config.cuda_graphs)
        hello = hello_of(config, own, len(devices))
        with clock.phase(OTHERS_PHASE):
            hellos = group.hellos()
        check_hellos({f"rank 0 ({devices[0]})": hello, **hellos})
        group.welcome(store.port)
        with clock.phase("joining", together=True):
            return group, _join(
                store, own, Rank(0, len(devices)), settings.exchange_limit_s(devices[0]), group, others.address
            )
    except BaseException:
        group.kill()
        leave_if_lost(own)
        raise


def _join(store: Store, device: torch.device, rank: Rank, timeout_s: float, group: RankGroup, host: str) -> Joining:
    """The leader's part. Raises RankLost with the cause that the watch has found, if there is one."""

    def join_others() -> Collectives:
        try:
            return join(store, device, rank, timeout_s, group.check, interface=interface_to(host))
        except RankLost as error:
            raise group.loss_after(error) from error.__cause__

    return Joining(rank, join_others, in_background=device.type == "cuda")


def _check_model(config: EngineConfig, num_ranks: int) -> None:
    """Refuses what no rank could serve, before they load anything. Raises ConfigError and ModelRejected."""
    share = config.share_of(read_model_config(config.model), Rank(0, num_ranks))
    if config.load_format == "safetensors":
        checked_weights(config.model, share)
