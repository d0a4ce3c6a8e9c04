"""The runners, which follow Ray's nodes and the scheduler's advice."""

import asyncio
import logging
from collections.abc import Set

from ray.autoscaler.sdk import request_resources

from punica_serve.cli.up.on_ray.nodes import RayNodes, next_nodes
from punica_serve.cli.up.on_ray.placed_actor import PlacedActor, give_back, place_actors
from punica_serve.cli.up.on_ray.plan import RayPlan
from punica_serve.numbers import counted
from punica_serve.protocol import ScaleAdvice

log = logging.getLogger(__name__)


class Runners:
    """An actor on each node that should have a runner, and the request to Ray's autoscaler."""

    def __init__(self, plan: RayPlan, tasks: asyncio.TaskGroup) -> None:
        self._plan = plan
        self._tasks = tasks
        self._nodes = RayNodes()
        self._actors: dict[str, PlacedActor] = {}  # by node id
        self._watches: dict[str, asyncio.Task[None]] = {}

    async def follow(self, alive: Set[str], advice: ScaleAdvice, num_gpus: int) -> None:
        """Starts and stops runners. ``alive`` nodes have room for one; ``num_gpus`` have joined the scheduler."""
        devices = len(self._plan.config.runner.workers)
        nodes = next_nodes(self._nodes, alive, advice, num_gpus=num_gpus, gpus_per_runner=devices)
        if nodes.num_wanted != self._nodes.num_wanted:
            log.info("asking Ray for %s with %s", counted(nodes.num_wanted, "node"), dict(self._plan.runner_bundle))
            await self._ask_for(nodes.num_wanted)
        for node_id in self._nodes.running - nodes.running:
            await self._end(node_id, is_alive=node_id in alive)
        for node_id in nodes.running - self._nodes.running:
            await self._start(node_id)
        self._nodes = nodes

    async def stop(self) -> None:
        """Stops all runners, and withdraws the request to the autoscaler."""
        for watch in self._watches.values():
            watch.cancel()
        await asyncio.gather(*(placed.stop() for placed in self._actors.values()))
        for placed in self._actors.values():
            await give_back([placed])
        await self._ask_for(0)

    async def _start(self, node_id: str) -> None:
        log.info("starting a runner on node %s", node_id)
        (placed,) = await place_actors([self._plan.runner_role(node_id)], [self._plan.runner_bundle], node_id=node_id)
        self._actors[node_id] = placed
        self._watches[node_id] = self._tasks.create_task(placed.fail_on_mistake())

    async def _end(self, node_id: str, *, is_alive: bool) -> None:
        self._watches.pop(node_id).cancel()
        placed = self._actors.pop(node_id)
        if is_alive:
            log.info("stopping the runner on node %s, as advised; the node can be released", node_id)
            await placed.stop()
        else:
            log.warning("lost node %s and its runner", node_id)
        await give_back([placed])

    async def _ask_for(self, num_nodes: int) -> None:
        """Asks Ray's autoscaler for this many nodes; without an autoscaler, nothing happens."""
        await asyncio.to_thread(request_resources, bundles=[dict(self._plan.runner_bundle)] * num_nodes)
