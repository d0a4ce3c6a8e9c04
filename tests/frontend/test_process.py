"""Frontends as processes: how they end, and what becomes of their requests. The scheduler is the test's."""

import asyncio
import json
import signal
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from frontend_process import StartFrontend
from punica_serve.protocol import CancelRequest, Deliveries, Ending, Limits
from scripted_scheduler import ScriptedScheduler
from waits import DEADLINE_S, until

pytestmark = pytest.mark.slow


GENERATE = json.dumps({"op": "generate", "request_id": "r", "prompt": "42"})


async def until_draining(client: httpx.AsyncClient) -> None:
    async def is_draining() -> bool:
        return "shutting down" in (await client.get("/ready")).text

    await until(is_draining, "the frontend drains")


async def frame(websocket: ClientConnection) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(await asyncio.wait_for(websocket.recv(), DEADLINE_S))
    return answer


async def test_a_killed_frontend_is_noticed_by_the_end_of_its_link(
    start_frontend: StartFrontend, scheduler: ScriptedScheduler
) -> None:
    frontend = await start_frontend()
    async with connect(frontend.stream_url, proxy=None) as websocket:
        await websocket.send(GENERATE)
        await until(lambda: scheduler.added)
        frontend.process.kill()
        # The lost link is all that the scheduler needs to cancel its requests.
        await until(lambda: scheduler.num_links == 0)


async def test_a_client_that_leaves_has_its_requests_cancelled(
    start_frontend: StartFrontend, scheduler: ScriptedScheduler
) -> None:
    frontend = await start_frontend()
    async with connect(frontend.stream_url, proxy=None) as websocket:
        await websocket.send(GENERATE)
        await until(lambda: scheduler.added)
        websocket.transport.abort()
        request_id = scheduler.added[0].request.request_id
        await until(lambda: CancelRequest(request_id) in scheduler.received)


async def test_sigterm_lets_what_runs_finish_and_takes_nothing_new(
    start_frontend: StartFrontend, scheduler: ScriptedScheduler
) -> None:
    frontend = await start_frontend()
    scheduler.send(Limits(1, 1_000))
    async with (
        connect(frontend.stream_url, proxy=None) as websocket,
        httpx.AsyncClient(base_url=frontend.url, timeout=DEADLINE_S, trust_env=False) as client,
    ):
        await websocket.send(GENERATE)
        await until(lambda: scheduler.added)
        frontend.process.terminate()
        await until_draining(client)
        await websocket.send(GENERATE.replace('"r"', '"late"'))
        refusal = await frame(websocket)
        assert (refusal["request_id"], refusal["finish_reason"]) == ("late", "error")
        handle = scheduler.added[0].handle
        scheduler.send(Deliveries((handle,), (0,), (20,), endings=(Ending(handle, 1, "length"),)))
        last = await frame(websocket)
        assert (last["request_id"], last["finish_reason"]) == ("r", "length")
        assert await asyncio.to_thread(frontend.process.wait, DEADLINE_S) == 0


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_requests_still_running_at_the_end_are_cancelled_with_a_reason(
    start_frontend: StartFrontend, scheduler: ScriptedScheduler, signum: signal.Signals
) -> None:
    frontend = await start_frontend(drain_timeout_s=0.2 if signum == signal.SIGTERM else 600.0)
    async with connect(frontend.stream_url, proxy=None) as websocket:
        await websocket.send(GENERATE)
        await until(lambda: scheduler.added)
        frontend.process.send_signal(signum)
        last = await frame(websocket)
        assert last["finish_reason"] == "error"
        assert "shutting down" in last["error"]["message"]
        assert await asyncio.to_thread(frontend.process.wait, DEADLINE_S) == 0
        await until(lambda: scheduler.num_links == 0)


async def test_a_second_signal_ends_a_drain_at_once(
    start_frontend: StartFrontend, scheduler: ScriptedScheduler
) -> None:
    frontend = await start_frontend(drain_timeout_s=600.0)
    async with (
        connect(frontend.stream_url, proxy=None) as websocket,
        httpx.AsyncClient(base_url=frontend.url, timeout=DEADLINE_S, trust_env=False) as client,
    ):
        await websocket.send(GENERATE)
        await until(lambda: scheduler.added)
        frontend.process.terminate()
        await until_draining(client)
        frontend.process.terminate()
        assert await asyncio.to_thread(frontend.process.wait, DEADLINE_S) == 1


async def test_frontends_share_a_scheduler_and_never_a_name(
    start_frontend: StartFrontend, scheduler: ScriptedScheduler
) -> None:
    frontends = [await start_frontend() for _ in range(2)]
    assert scheduler.num_links == 2
    for frontend in frontends:
        async with connect(frontend.stream_url, proxy=None) as websocket:
            await websocket.send(GENERATE)
            num_added = len(scheduler.added)
            await until(lambda num_before=num_added: len(scheduler.added) > num_before)  # type: ignore[misc]
    assert len({message.request.request_id for message in scheduler.added}) == 2
    assert len(set(scheduler.frontend_ids)) == 2
    frontends[0].process.kill()
    await until(lambda: scheduler.num_links == 1)
