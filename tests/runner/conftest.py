import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FAKE_WORKER = Path(__file__).with_name("fake_worker.py")


@pytest.fixture
def fake_worker() -> Callable[..., list[str]]:
    """Gives the command line of a worker that speaks the protocol but has no engine; see fake_worker.py."""

    def command(uuid: str = "CPU-a", behaviour: str = "serve") -> list[str]:
        return [sys.executable, "-P", str(FAKE_WORKER), "--uuid", uuid, "--behaviour", behaviour]

    return command


async def _until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.fixture
def until() -> Callable[..., object]:
    """Waits until a condition holds, with a deadline."""
    return _until


def _is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def is_alive() -> Callable[[int], bool]:
    """Whether a process runs; a zombie that nobody has waited for does not."""
    return _is_alive
