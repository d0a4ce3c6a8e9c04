"""The main loop of `up --ray`: follows the control actors, and makes the runners follow Ray's nodes and the advice."""

import asyncio
import logging
from typing import TYPE_CHECKING

import httpx
import ray

from punica_serve.cli.up.on_ray.adviser import Adviser
from punica_serve.cli.up.on_ray.connection import connect
from punica_serve.cli.up.on_ray.placed_actor import PlacedActor, give_back, nodes_with, place_actors
from punica_serve.cli.up.on_ray.plan import RayPlan
from punica_serve.cli.up.on_ray.runners import Runners
from punica_serve.cli.up.on_ray.tracked_actor import TrackedActor
from punica_serve.cli.up.readiness import POLL_TIMEOUT_S, print_banner, until_ready, verifying
from punica_serve.process.readiness import READY, notify

if TYPE_CHECKING:
    from rich.console import Console

POLL_INTERVAL_S = 1.0


async def serve(plan: RayPlan, console: "Console") -> None:
    """Keeps the cluster running on Ray until cancelled, and leaves nothing there.

    Raises ConfigError if Ray can't be reached, and in an exception group when a user's mistake ended a process.
    """
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every poll
    await asyncio.to_thread(connect, plan.namespace, plan.needs)
    try:
        scheduler, *frontends = await place_actors(plan.control_roles, plan.control_bundles)
        try:
            await _keep(plan, scheduler, frontends, console)
        finally:
            await asyncio.gather(*(placed.stop() for placed in frontends))
            await scheduler.stop()
            await give_back([scheduler, *frontends])
    finally:
        await asyncio.to_thread(ray.shutdown)


async def _keep(plan: RayPlan, scheduler: PlacedActor, frontends: list[PlacedActor], console: "Console") -> None:
    """Follows everything until cancelled, and then stops the runners."""
    placed = [TrackedActor(placed) for placed in (scheduler, *frontends)]
    async with asyncio.TaskGroup() as tasks:
        for each in placed:
            tasks.create_task(each.placed.fail_on_mistake())
            tasks.create_task(each.keep_following())
        runners = Runners(plan, tasks)
        keeping = tasks.create_task(_keep_runners(plan, runners, placed[1:]))
        try:
            console.print(f"waiting for Ray to place {len(placed)} processes", soft_wrap=True)
            urls = [await frontend.first_url() for frontend in placed[1:]]
            print_banner(urls, await until_ready(urls, console, plan.config.frontend.tls), console)
            notify(READY)
            await asyncio.Event().wait()
        finally:
            keeping.cancel()
            await asyncio.wait((keeping,))
            await runners.stop()


async def _keep_runners(plan: RayPlan, runners: Runners, frontends: list[TrackedActor]) -> None:
    headers = {"Authorization": f"Bearer {plan.key}"} if plan.key else None
    verify = verifying(plan.config.frontend.tls)
    async with httpx.AsyncClient(headers=headers, timeout=POLL_TIMEOUT_S, verify=verify, trust_env=False) as client:
        adviser = Adviser(client)
        while True:
            await adviser.ask([frontend.url for frontend in frontends])
            await runners.follow(await nodes_with(plan.runner_bundle), adviser.advice, adviser.num_gpus)
            await asyncio.sleep(POLL_INTERVAL_S)
