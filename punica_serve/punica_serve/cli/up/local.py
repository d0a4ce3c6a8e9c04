"""Runs a cluster's processes as children of `up`, on one machine."""

import asyncio
import logging
import secrets
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from punica_serve.cli.children import Child, kept_running
from punica_serve.cli.up.plan import Plan, Process
from punica_serve.cli.up.readiness import print_banner, until_ready
from punica_serve.links.addresses import until_listening
from punica_serve.process.lifeline import lifeline
from punica_serve.process.readiness import READY, notify
from punica_serve.process.run import TOKEN_ENV, given_token

if TYPE_CHECKING:
    from rich.console import Console


async def serve(plan: Plan, console: "Console") -> None:
    """Keeps the processes running until cancelled; then stops the frontends, the runners and the scheduler, in this
    order.
    """
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every poll
    token = given_token() or secrets.token_hex(16)
    environment = {TOKEN_ENV: token, "PYTHONSAFEPATH": "1"}
    async with AsyncExitStack() as stack:
        lifeline_fd = stack.enter_context(lifeline())

        async def start(processes: Sequence[Process]) -> None:
            children = [
                Child(each.name, each.command, lifeline_fd, {**environment, **each.environment}) for each in processes
            ]
            await stack.enter_async_context(kept_running(children))

        await start([plan.scheduler()])
        await until_listening(plan.scheduler_host, plan.scheduler_port)  # otherwise the others would log errors
        await start(plan.runners())
        await start(plan.frontends())
        models = await until_ready(plan.urls, console, plan.https)
        print_banner(plan.urls, models, console)
        notify(READY)
        await asyncio.Event().wait()
