"""The runners, which follow Ray's nodes and the scheduler's advice."""

import asyncio
import logging
from collections.abc import Set

from ray.autoscaler.sdk import request_resources

from punica_serve.cli.up.on_ray.fleet import Fleet, next_fleet
from punica_serve.cli.up.on_ray.plan import RayPlan
from punica_serve.cli.up.on_ray.seats import Seat, give_back, take_seats
from punica_serve.numbers import counted
from punica_serve.protocol import ScaleAdvice

log = logging.getLogger(__name__)


class Runners:
    """A seat on each node that should have a runner, and the request to Ray's autoscaler."""

    def __init__(self, plan: RayPlan, tasks: asyncio.TaskGroup) -> None:
        self._plan = plan
        self._tasks = tasks
        self._fleet = Fleet()
        self._seats: dict[str, Seat] = {}  # by node id
        self._watches: dict[str, asyncio.Task[None]] = {}

    async def follow(self, alive: Set[str], advice: ScaleAdvice, num_gpus: int) -> None:
        """Starts and stops runners. ``alive`` nodes have room for one; ``num_gpus`` have joined the scheduler."""
        devices = len(self._plan.config.runner.workers)
        fleet = next_fleet(self._fleet, alive, advice, num_gpus=num_gpus, gpus_per_runner=devices)
        if fleet.num_wanted != self._fleet.num_wanted:
            log.info("asking Ray for %s with %s", counted(fleet.num_wanted, "node"), dict(self._plan.runner_bundle))
            await self._ask_for(fleet.num_wanted)
        for node_id in self._fleet.running - fleet.running:
            await self._end(node_id, is_alive=node_id in alive)
        for node_id in fleet.running - self._fleet.running:
            await self._start(node_id)
        self._fleet = fleet

    async def stop(self) -> None:
        """Stops all runners, and withdraws the request to the autoscaler."""
        for watch in self._watches.values():
            watch.cancel()
        await asyncio.gather(*(seat.stop() for seat in self._seats.values()))
        for seat in self._seats.values():
            await give_back([seat])
        await self._ask_for(0)

    async def _start(self, node_id: str) -> None:
        log.info("starting a runner on node %s", node_id)
        (seat,) = await take_seats([self._plan.runner_role(node_id)], [self._plan.runner_bundle], node_id=node_id)
        self._seats[node_id] = seat
        self._watches[node_id] = self._tasks.create_task(seat.fail_on_mistake())

    async def _end(self, node_id: str, *, is_alive: bool) -> None:
        self._watches.pop(node_id).cancel()
        seat = self._seats.pop(node_id)
        if is_alive:
            log.info("stopping the runner on node %s, as advised; the node can be released", node_id)
            await seat.stop()
        else:
            log.warning("lost node %s and its runner", node_id)
        await give_back([seat])

    async def _ask_for(self, num_nodes: int) -> None:
        """Asks Ray's autoscaler for this many nodes; without an autoscaler, nothing happens."""
        await asyncio.to_thread(request_resources, bundles=[dict(self._plan.runner_bundle)] * num_nodes)
