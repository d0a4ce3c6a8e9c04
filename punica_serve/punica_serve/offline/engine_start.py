"""Starts the engine of a script: the ranks of a group import torch, which takes seconds, while the script does."""

from typing import TYPE_CHECKING

from rich.console import Console

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.base_model.rank import Rank
from punica_serve.config.device_groups import ranks_of, why_no_group
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.ranks.early_ranks import EarlyRanks
from punica_serve.engine.ranks.group_settings import GroupSettings
from punica_serve.engine.ranks.rank_processes import RankProcesses
from punica_serve.offline.dropped_llm import await_dropped
from punica_serve.offline.lost_rank import end_if_hung
from punica_serve.process.start_clock import OnPhase, StartClock, no_phases

if TYPE_CHECKING:
    from punica_serve.engine.engine import Engine


def start_engine(
    config: EngineConfig,
    model: ModelConfig,
    device: str,
    early: EarlyRanks | None = None,
    on_phase: OnPhase = no_phases,
) -> "Engine":
    """The engine on a device, or on several with commas between. Raises as ``Engine`` does.

    ``early``: the other ranks of the group, if they were started before. ``on_phase`` is called on several threads.

    A start of more than ten seconds says on a terminal how far it is.
    """
    clock = StartClock(say=_say)
    clock.on_phase = on_phase
    others = _start_others(config, model, device, early)
    try:
        from punica_serve.engine.engine import Engine

        clock.spent("imports", clock.total_s)
        return Engine(config, device, others=others, on_loss=end_if_hung if "cuda" in device else None, clock=clock)
    except BaseException:
        if others is not None:
            others.end(0.0)
        raise


def _say(words: str) -> None:
    console = Console(stderr=True)
    if console.is_terminal:
        console.print(words, highlight=False)


def _start_others(
    config: EngineConfig, model: ModelConfig, device: str, early: EarlyRanks | None
) -> RankProcesses | None:
    """The other ranks of a group; None if there are none, or the engine will refuse them."""
    devices = ranks_of(device)
    if len(devices) == 1 or why_no_group(devices):
        return None
    config.share_of(model, Rank(0, len(devices)))
    await_dropped()
    return RankProcesses(config, devices, GroupSettings(), early=early)
