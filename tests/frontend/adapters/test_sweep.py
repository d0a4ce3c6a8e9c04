from collections.abc import Callable
from typing import Any

import pytest

from punica_frontend.adapters import sweep
from punica_frontend.adapters.registration import Wish
from punica_frontend.caller import ANYONE
from punica_serve.protocol import AdapterResidency

Bringing = Callable[[str], Any]
STRAY = "a" * 64


async def test_what_a_runner_brings_back_is_forgotten(world: Any, bringing: Bringing) -> None:
    await world.registrar.register(ANYONE, Wish("roman", prefetch=True), bringing("1"))
    named = {*world.cluster.resident}
    world.cluster.resident[STRAY] = AdapterResidency(STRAY, disks=("host",))
    await world.sweep.strays()
    assert {*world.cluster.resident} == named


async def test_files_that_nothing_names_go_after_a_while(
    world: Any, bringing: Bringing, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.registrar.register(ANYONE, Wish("roman"), bringing("1"))
    named = world.stored()
    (world.folder / "store" / STRAY).mkdir()
    await world.sweep.files()
    await world.sweep.files()
    assert world.stored() == {*named, STRAY}
    monkeypatch.setattr(sweep, "GRACE_S", 0.0)
    await world.sweep.files()
    assert world.stored() == named
