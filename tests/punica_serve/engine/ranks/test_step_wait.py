"""A step of a group that does not end is the loss of the group, though all ranks live."""

import threading
from pathlib import Path
from typing import NoReturn

import pytest

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.engine import Engine
from punica_serve.engine.ranks.group_settings import GroupSettings
from punica_serve.engine.ranks.rank_loss import RankLost
from punica_serve.engine.ranks.step_wait import StepWait
from punica_serve.engine.step_runner import FinishedStep
from punica_serve.errors import PunicaError
from punica_serve.protocol import Request, SamplingParams

_DEADLINE_S = 30.0


def test_only_a_wait_that_lasts_is_a_loss() -> None:
    wait = StepWait(0.0)
    wait.check()
    message = "a step has not ended within 0 s: its ranks wait for each other"
    with pytest.raises(RankLost, match=message), wait.waiting():
        while True:
            wait.check()
    wait.check()
    with StepWait(_DEADLINE_S).waiting():
        wait.check()


def test_the_watch_of_a_group_tells_of_a_step_that_hangs(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses: list[PunicaError] = []
    told = threading.Event()

    def lose(loss: PunicaError) -> None:
        losses.append(loss)
        told.set()

    def hang(_: FinishedStep) -> NoReturn:
        """As where the device waits for an exchange that never ends."""
        assert told.wait(_DEADLINE_S)
        raise losses[0]

    settings = GroupSettings()
    config = EngineConfig(model=tiny_llama, num_kv_pages=16, num_lora_pages=4, cpu_threads=1)
    engine = Engine(config, "cpu,cpu", others=settings, on_loss=lose)
    try:
        assert engine._group._group is not None
        wait = engine._group._group.step_wait
        assert wait._timeout_s == settings.exchange_timeout_s + settings.silence_timeout_s
        wait._timeout_s = 1.0  # only now: on a busy machine a rank's start has longer waits
        monkeypatch.setattr(FinishedStep, "sampled_tokens", hang)
        engine.add(Request("r", 0, (1, 2), SamplingParams(max_tokens=1)))
        with pytest.raises(RankLost, match=r"a step has not ended within 1 s: its ranks wait for each other"):
            engine.step()
    finally:
        engine.close()
