"""Actors in placement groups: all calls to Ray. They block, so they run on threads."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from punica_serve.cli.up.on_ray.plan import Resources
from punica_serve.cli.up.on_ray.process_actor import ProcessActor
from punica_serve.cli.up.on_ray.roles import Place, Role
from punica_serve.errors import ConfigError
from punica_serve.process.run import STOP_TIMEOUT_S

NODE_ID_LABEL = "ray.io/node-id"

#: `stop` runs on its own thread, besides `run` and `where`.
_NUM_THREADS = 4
_STOP_TIMEOUT_S = 3 * STOP_TIMEOUT_S
#: An actor that does not answer has not been placed, or no longer runs, so it has no process to stop.
_ANSWER_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class PlacedActor:
    """An actor in a bundle of a placement group. Ray restarts it forever, within the group."""

    role: Role
    actor: Any
    group: PlacementGroup
    #: The result of ProcessActor.run.
    running: Any

    async def where(self) -> Place:
        """The actor's place. Waits while Ray moves it."""
        place: Place = await self.actor.where.remote()
        return place

    async def fail_on_mistake(self) -> None:
        """Returns when the process was stopped. Raises ConfigError when a user's mistake ended it."""
        if mistake := await self.running:
            raise ConfigError(mistake)

    async def stop(self) -> None:
        """Stops the process, if the actor answers."""
        with contextlib.suppress(RayError, TimeoutError):
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                await self.where()
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await self.actor.stop.remote()


async def place_actors(
    roles: Sequence[Role], bundles: Sequence[Resources], *, node_id: str | None = None
) -> list[PlacedActor]:
    """An actor for each role, each in its own bundle: on this node, or spread over as many nodes as possible.

    Returns before Ray has placed them.
    """
    return await asyncio.to_thread(_place_actors, roles, bundles, node_id)


async def give_back(actors: Sequence[PlacedActor]) -> None:
    """Ends the actors of one group, then the group, whether Ray has placed them or not."""
    await asyncio.to_thread(_give_back, actors)


def _give_back(actors: Sequence[PlacedActor]) -> None:
    for placed in actors:
        ray.kill(placed.actor)
    remove_placement_group(actors[0].group)


def _place_actors(roles: Sequence[Role], bundles: Sequence[Resources], node_id: str | None) -> list[PlacedActor]:
    labels = [{NODE_ID_LABEL: node_id}] * len(bundles) if node_id else None
    group = placement_group([dict(bundle) for bundle in bundles], strategy="SPREAD", bundle_label_selector=labels)
    return [_place_actor(role, group, index, bundles[index]) for index, role in enumerate(roles)]


def _place_actor(role: Role, group: PlacementGroup, index: int, bundle: Resources) -> PlacedActor:
    custom = {name: amount for name, amount in bundle.items() if name not in ("CPU", "GPU")}
    actor: Any = (
        ray.remote(ProcessActor)
        .options(
            name=role.name,
            namespace=role.namespace,
            num_cpus=bundle.get("CPU", 0),
            num_gpus=bundle.get("GPU", 0),
            resources=custom,
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=_NUM_THREADS,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
        )
        .remote(role)
    )
    return PlacedActor(role, actor, group, actor.run.remote())


async def nodes_with(bundle: Resources) -> set[str]:
    """Ids of the live nodes that are large enough for the bundle, regardless of what runs there."""
    nodes = await asyncio.to_thread(ray.nodes)
    return {
        node["NodeID"]
        for node in nodes
        if node["Alive"] and all(node["Resources"].get(name, 0) >= amount for name, amount in bundle.items())
    }
