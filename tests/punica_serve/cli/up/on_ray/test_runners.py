"""Runners follow the nodes, over a Ray that notes what it is asked for."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from punica_serve.cli.up.on_ray import runners
from punica_serve.cli.up.on_ray.plan import RayPlan
from punica_serve.cli.up.on_ray.runners import Runners
from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.process.logs import LogLevel
from punica_serve.protocol import ScaleAdvice
from waits import DEADLINE_S

PLAN = RayPlan(
    ClusterConfig(engine=EngineConfig(model=Path("/model"))),
    namespace="namespace",
    token="token",
    log_level=LogLevel.INFO,
    host=None,
    port=0,
    num_frontends=1,
)


class NotingRay:
    """Its actors are the notes' names of nodes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    async def place_actors(self, roles: Sequence[Any], bundles: Sequence[Any], *, node_id: str) -> list[Any]:
        self.notes.append(f"take {node_id}")
        return [NotingSeat(node_id, self.notes)]

    async def give_back(self, actors: Sequence[Any]) -> None:
        self.notes += [f"give back {placed.node_id}" for placed in actors]

    def request_resources(self, *, bundles: list[Any]) -> None:
        assert all(bundle == {"CPU": 1} for bundle in bundles)
        self.notes.append(f"ask for {len(bundles)}")


class NotingSeat:
    def __init__(self, node_id: str, notes: list[str]) -> None:
        self.node_id = node_id
        self._notes = notes

    async def fail_on_mistake(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        self._notes.append(f"stop {self.node_id}")


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> NotingRay:
    ray = NotingRay()
    for name in ("place_actors", "give_back", "request_resources"):
        monkeypatch.setattr(runners, name, getattr(ray, name))
    return ray


@asynccontextmanager
async def following() -> AsyncIterator[Runners]:
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        follower = Runners(PLAN, tasks)
        yield follower
        await follower.stop()


async def test_a_runner_starts_on_each_node_and_is_stopped_at_the_end(ray: NotingRay) -> None:
    async with following() as follower:
        await follower.follow({"a"}, ScaleAdvice(), num_gpus=0)
        await follower.follow({"a"}, ScaleAdvice(), num_gpus=1)
        assert ray.notes == ["ask for 1", "take a"]
        ray.notes.clear()
    assert ray.notes == ["stop a", "give back a", "ask for 0"]


async def test_a_dead_nodes_actor_is_given_back_and_a_new_node_gets_one(ray: NotingRay) -> None:
    async with following() as follower:
        await follower.follow({"a"}, ScaleAdvice(), num_gpus=0)
        ray.notes.clear()
        await follower.follow({"b"}, ScaleAdvice(), num_gpus=1)
        assert ray.notes == ["give back a", "take b"]


async def test_ray_is_asked_for_what_is_advised_once(ray: NotingRay) -> None:
    async with following() as follower:
        await follower.follow({"a"}, ScaleAdvice(), num_gpus=1)
        ray.notes.clear()
        for _ in range(2):
            await follower.follow({"a"}, ScaleAdvice(num_more_gpus=2), num_gpus=1)
        assert ray.notes == ["ask for 3"]


async def test_an_emptied_node_is_left_to_ray(ray: NotingRay) -> None:
    async with following() as follower:
        await follower.follow({"a", "b"}, ScaleAdvice(), num_gpus=2)
        ray.notes.clear()
        await follower.follow({"a", "b"}, ScaleAdvice(releasable_runners=("ray-b",)), num_gpus=2)
        assert ray.notes == ["ask for 1", "stop b", "give back b"]
