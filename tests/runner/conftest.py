import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from punica_runner import worker_process
from punica_serve import wire
from punica_serve.protocol import ToScheduler
from supervised import LINKS, FakeScheduler
from waits import DEADLINE_S

FAKE_WORKER = Path(__file__).with_name("fake_worker.py")


@pytest.fixture
def fake_worker() -> Callable[..., list[str]]:
    """Gives the command line of a worker that speaks the protocol but has no engine; see fake_worker.py."""

    def command(uuid: str = "CPU-a", behaviour: str = "serve") -> list[str]:
        return [sys.executable, "-P", str(FAKE_WORKER), "--uuid", uuid, "--behaviour", behaviour]

    return command


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "RECONNECT_FIRST_S", 0.02)
    monkeypatch.setattr(wire, "RECONNECT_HIGHEST_S", 0.05)
    # The end of a process is seen when it comes, however busy the machine is.
    monkeypatch.setattr(worker_process, "LAST_WORDS_S", DEADLINE_S)


@pytest.fixture
async def scheduler() -> AsyncIterator[FakeScheduler]:
    fake = FakeScheduler()
    async with wire.listen("127.0.0.1", 0, ToScheduler, fake.session, LINKS) as port:
        fake.url = f"ws://127.0.0.1:{port}"
        yield fake
