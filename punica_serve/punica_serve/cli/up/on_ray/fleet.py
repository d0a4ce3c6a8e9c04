"""Which of Ray's nodes have a runner, and how many nodes there should be."""

import math
from collections.abc import Set
from dataclasses import dataclass

from punica_serve.protocol import ScaleAdvice


@dataclass(frozen=True)
class Fleet:
    """Node ids."""

    #: Each has a runner.
    running: frozenset[str] = frozenset()
    #: Emptied on advice, and for Ray's autoscaler to end. One that still lives when more are wanted runs again.
    released: frozenset[str] = frozenset()
    #: Nodes that Ray is asked for, those that run among them.
    num_wanted: int = 0


def runner_id(node_id: str) -> str:
    """A runner is named by its node, so that it is the same one after a restart."""
    return f"ray-{node_id}"


def next_fleet(fleet: Fleet, alive: Set[str], advice: ScaleAdvice, *, num_gpus: int, gpus_per_runner: int) -> Fleet:
    """The fleet that follows the advice; ``num_gpus`` have joined by now, and ``alive`` nodes could have a runner.

    Every node that Ray adds gets a runner. More are counted from the GPUs that have joined, not from the runners: one
    that is starting is what the advice asked for, not on top of it.
    """
    emptied = {node for node in fleet.running & alive if runner_id(node) in advice.releasable_runners}
    resting = fleet.released & alive
    running = alive - emptied - resting
    advised = math.ceil((num_gpus + advice.num_more_gpus) / gpus_per_runner) if advice.num_more_gpus else 0
    num_wanted = max(len(running), advised)
    woken = sorted(resting)[: num_wanted - len(running)]
    return Fleet(
        running=frozenset(running).union(woken),
        released=frozenset((resting | emptied).difference(woken)),
        num_wanted=num_wanted,
    )
