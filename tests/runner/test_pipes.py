import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from punica_runner import pipes
from punica_runner.pipes import SupervisorPipe, WorkerPipe
from punica_serve.errors import ProtocolError
from punica_serve.protocol import (
    AssignmentId,
    AssignmentsFailed,
    Reset,
    StopRequest,
    SupervisorToWorker,
    WireError,
    WorkerToSupervisor,
)
from waits import DEADLINE_S


def stop(counter: int) -> StopRequest:
    return StopRequest("gpu", counter, AssignmentId(1, counter))


def failed(message: str) -> AssignmentsFailed:
    return AssignmentsFailed("gpu", 0, 0, (AssignmentId(1, 1),), True, WireError("request_failed", message))


@asynccontextmanager
async def pipe_pair() -> AsyncIterator[tuple[SupervisorPipe, WorkerPipe]]:
    their_read, our_write = os.pipe()
    our_read, their_write = os.pipe()
    supervisor = await SupervisorPipe.open(our_read, our_write, WorkerToSupervisor)
    worker = WorkerPipe(their_read, their_write, SupervisorToWorker)
    try:
        yield supervisor, worker
    finally:
        supervisor.close()
        await asyncio.sleep(0.01)  # transports close in the loop's next turn
        worker.close()


async def test_commands_arrive_in_order_until_the_supervisor_ends_the_pipe() -> None:
    async with pipe_pair() as (supervisor, worker):
        got = asyncio.create_task(asyncio.to_thread(lambda: list(worker)))
        sent = [*(stop(i) for i in range(2000)), Reset(3)]
        for command in sent:
            supervisor.send(command)
        while supervisor._write.get_write_buffer_size():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        supervisor.close()
        assert await got == sent
        supervisor.send(Reset(4))  # to nobody


async def test_reports_larger_than_a_pipe_arrive_whole_from_several_threads() -> None:
    async with pipe_pair() as (supervisor, worker):
        texts = [letter * 300_000 for letter in "abcd"]
        threads = [threading.Thread(target=worker.send, args=(failed(text),)) for text in texts]
        for thread in threads:
            thread.start()
        async with asyncio.timeout(DEADLINE_S):
            got = [(await anext(supervisor)).error.message for _ in texts]
        assert sorted(got) == texts
        for thread in threads:
            thread.join()


async def test_the_end_of_the_worker_ends_the_iteration_after_its_last_words() -> None:
    async with pipe_pair() as (supervisor, worker):
        worker.send(failed("last words"))
        worker.close()
        assert [message.error.message async for message in supervisor] == ["last words"]


async def test_a_frame_cut_short_is_an_end() -> None:
    async with pipe_pair() as (supervisor, worker):
        worker._write.write(pipes.pack(failed("cut"))[:-1])
        worker.close()
        assert [message async for message in supervisor] == []


@pytest.mark.parametrize("wrong", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x03abc"])
async def test_an_invalid_frame_is_refused_at_both_ends(wrong: bytes) -> None:
    async with pipe_pair() as (supervisor, worker):
        worker._write.write(wrong)
        with pytest.raises(ProtocolError):
            await anext(supervisor)
        supervisor._write.write(wrong)
        with pytest.raises(ProtocolError):
            await asyncio.to_thread(next, iter(worker))


async def test_a_message_too_long_is_refused_where_it_is_made(small_frames: None) -> None:
    async with pipe_pair() as (supervisor, worker):
        with pytest.raises(ProtocolError, match="longer than the limit of 1000"):
            worker.send(failed("x" * 2000))
        worker.send(failed("short"))
        assert (await anext(supervisor)).error.message == "short"


@pytest.fixture
def small_frames(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pipes, "MAX_FRAME_BYTES", 1000)
    yield


async def test_a_worker_that_does_not_read_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "MAX_QUEUED_BYTES", 100_000)
    async with pipe_pair() as (supervisor, _):
        for i in range(10_000):
            supervisor.send(stop(i))
        assert supervisor.overflowed
        assert [message async for message in supervisor] == []


async def test_a_worker_without_a_supervisor_meets_a_broken_pipe() -> None:
    async with pipe_pair() as (supervisor, worker):
        supervisor.close()
        await asyncio.sleep(0.01)
        with pytest.raises(BrokenPipeError):
            worker.send(failed("to nobody"))
