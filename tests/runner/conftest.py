import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from punica_runner import worker_process
from punica_serve.links import hello
from punica_serve.protocol import ToScheduler
from supervised import LINKS, FakeScheduler
from waits import DEADLINE_S

FAKE_WORKER = Path(__file__).with_name("fake_worker.py")


@pytest.fixture
def fake_worker() -> Callable[..., list[str]]:
    """Returns the command line of a worker that speaks the protocol but has no engine; see fake_worker.py."""

    def command(uuid: str = "CPU-a", behaviour: str = "serve") -> list[str]:
        return [sys.executable, "-P", str(FAKE_WORKER), "--uuid", uuid, "--behaviour", behaviour]

    return command


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hello, "RECONNECT_FIRST_S", 0.02)
    monkeypatch.setattr(hello, "RECONNECT_HIGHEST_S", 0.05)
    # Detects the end of a process at once, even on a busy machine.
    monkeypatch.setattr(worker_process, "EXIT_GRACE_S", DEADLINE_S)


@pytest.fixture
async def scheduler() -> AsyncIterator[FakeScheduler]:
    fake = FakeScheduler()
    async with hello.listen("127.0.0.1", 0, ToScheduler, fake.session, LINKS) as port:
        fake.url = f"ws://127.0.0.1:{port}"
        yield fake
