"""Decides which of Ray's nodes have a runner, and how many nodes there should be."""

import math
from collections.abc import Set
from dataclasses import dataclass

from punica_serve.protocol import ScaleAdvice


@dataclass(frozen=True)
class RayNodes:
    """The nodes, by id."""

    #: Nodes with a runner.
    running: frozenset[str] = frozenset()
    #: Nodes emptied on advice, for Ray's autoscaler to remove. One that still lives when more are needed is used again.
    released: frozenset[str] = frozenset()
    #: Number of nodes requested from Ray, including the running ones.
    num_wanted: int = 0


def runner_id(node_id: str) -> str:
    """A runner's id is derived from its node, so that it stays the same after a restart."""
    return f"ray-{node_id}"


def next_nodes(
    nodes: RayNodes, alive: Set[str], advice: ScaleAdvice, *, num_gpus: int, gpus_per_runner: int
) -> RayNodes:
    """The nodes that follow the advice. ``num_gpus`` have joined so far; ``alive`` nodes could have a runner.

    Every node that Ray adds gets a runner. Further nodes are counted from the GPUs that have joined, not from the
    runners: a starting runner already answers the advice, and does not add to it.
    """
    emptied = {node for node in nodes.running & alive if runner_id(node) in advice.releasable_runners}
    resting = nodes.released & alive
    running = alive - emptied - resting
    advised = math.ceil((num_gpus + advice.num_more_gpus) / gpus_per_runner) if advice.num_more_gpus else 0
    num_wanted = max(len(running), advised)
    woken = sorted(resting)[: num_wanted - len(running)]
    return RayNodes(
        running=frozenset(running).union(woken),
        released=frozenset((resting | emptied).difference(woken)),
        num_wanted=num_wanted,
    )
