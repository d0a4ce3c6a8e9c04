"""Nodes that die and join while streams run."""

from typing import Any

import pytest
from ray.cluster_utils import Cluster

from punica_faults.load import Load
from punica_faults.references import Reference
from ray_up import RayUp
from waits import until

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(600)]

NUM_STREAMS = 200


def node(nodes: Cluster, node_id: str) -> Any:
    return next(each for each in nodes.worker_nodes if each.node_id == node_id)


async def test_every_stream_goes_on_when_nodes_die_and_others_join(
    references: list[Reference], ray_nodes: Cluster, ray_up: RayUp
) -> None:
    """First the node of a runner dies, then that of the scheduler with its own."""
    load = Load(ray_up.frontends, references, num_streams=NUM_STREAMS, seed=1)
    async with load.running(sockets_per_frontend=4):
        await load.until_in_flight()
        (scheduler_node,) = ray_up.scheduler_nodes
        (other,) = {each.node_id for each in ray_nodes.worker_nodes} - {scheduler_node}

        running = load.in_flight()
        ray_nodes.remove_node(node(ray_nodes, other), allow_graceful=False)
        await load.until_past(running)
        ray_nodes.add_node(num_cpus=0, resources={"scheduler": 1, "runner": 1})
        await ray_up.until_ready(num_gpus=2)

        running = load.in_flight()
        ray_nodes.remove_node(node(ray_nodes, scheduler_node), allow_graceful=False)
        await until(lambda: len(ray_up.scheduler_nodes) == 2, "the scheduler has moved", describe=ray_up.log)
        await load.until_past(running)
        await load.stop(running)
    assert load.num_lost == 0 and load.num_completed >= NUM_STREAMS
    await until(ray_up.is_idle, "every page is free again", describe=ray_up.log)
