from dataclasses import replace
from pathlib import Path
from typing import Any

from punica_serve.cli.up.on_ray.plan import RayPlan
from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.config.ray_section import RayConfig
from punica_serve.config.runner_section import RunnerConfig
from punica_serve.process.logs import LogLevel


def plan(*, port: int = 8000, devices: tuple[str, ...] = ("cpu",), **ray: Any) -> RayPlan:
    config = ClusterConfig(
        engine=EngineConfig(model=Path("/model")), runner=RunnerConfig(devices=devices), ray=RayConfig(**ray)
    )
    return RayPlan(config, "namespace", "token", LogLevel.INFO, host=None, port=port, num_frontends=2)


def test_frontends_have_names_and_ports_of_their_own() -> None:
    scheduler, *frontends = plan().control_roles
    assert (scheduler.kind, scheduler.name) == ("scheduler", "scheduler")
    assert [(role.name, role.port) for role in frontends] == [("frontend 0", 8000), ("frontend 1", 8001)]
    assert [role.port for role in plan(port=0).control_roles[1:]] == [0, 0]


def test_a_runner_is_the_same_one_after_a_restart() -> None:
    role = plan().runner_role("0123456789abcdef")
    assert role.runner_id == "ray-0123456789abcdef"
    assert role == plan().runner_role("0123456789abcdef")


def test_a_runner_reserves_its_devices() -> None:
    assert plan(devices=("cuda:0", "cuda:1")).runner_bundle == {"GPU": 2}
    assert plan(devices=("cpu", "cpu")).runner_bundle == {"CPU": 2}
    assert plan(runner={"GPU": 1, "memory": 5}).runner_bundle == {"GPU": 1, "memory": 5}


def test_a_ray_of_one_node_has_room_for_everything() -> None:
    assert plan(scheduler={"CPU": 0.5}).needs == {"CPU": 4}


def test_neither_plan_nor_role_shows_a_secret() -> None:
    secretive = replace(plan(), token="hunter2", key="hunter2")
    assert "hunter2" not in repr(secretive)
    role = secretive.runner_role("node")
    assert role.token == "hunter2" and role.config not in repr(role) and "hunter2" not in repr(role)


def test_a_role_has_the_whole_config_for_nodes_without_the_file() -> None:
    role = plan(devices=("cpu", "cpu")).runner_role("node")
    assert ClusterConfig.model_validate_json(role.config).runner.devices == ("cpu", "cpu")
