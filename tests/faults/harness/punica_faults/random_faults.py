"""Faults at random, from a seed: the same seed breaks the same things in the same order."""

import asyncio
import random
import time
from collections.abc import Callable, Collection, Sequence

from punica_faults import faults
from punica_faults.cluster import FRONTENDS, RUNNERS, WORKERS_PER_RUNNER, Cluster
from punica_faults.faults import Fault
from punica_faults.load import Load, Stream
from punica_faults.recovery import Recovery

LINKS = (*RUNNERS, *FRONTENDS)
#: From the first fault to one that meets the cluster on its way back.
LONGEST_PAUSE_S = 4.0

_KINDS: tuple[Callable[[random.Random], Fault], ...] = (
    lambda dice: faults.kill_worker(dice.choice(RUNNERS), dice.randrange(WORKERS_PER_RUNNER)),
    lambda dice: faults.freeze_worker(dice.choice(RUNNERS), dice.randrange(WORKERS_PER_RUNNER)),
    lambda dice: faults.kill(dice.choice((*RUNNERS, *FRONTENDS, "scheduler"))),
    lambda dice: faults.freeze(dice.choice((*RUNNERS, *FRONTENDS, "scheduler"))),
    lambda dice: faults.kill_again(dice.choice((*RUNNERS, "scheduler"))),
    lambda dice: faults.terminate(dice.choice((*RUNNERS, *FRONTENDS))),
    lambda dice: faults.cut(*_some(dice, LINKS)),
    lambda dice: faults.delay(*_some(dice, LINKS)),
    lambda dice: faults.drop(*_some(dice, LINKS), for_s=dice.choice((faults.SHORT_DROP_S, faults.LONG_DROP_S))),
)


async def run_faults(
    cluster: Cluster, load: Load, *, seed: int, for_s: float, say: Callable[[str], None]
) -> list[Recovery]:
    """Breaks up to three things in a row until the time is up, and waits each time until all streams go on.

    No two of them are of a kind, so that two workers die at most: a stream whose worker dies three times before it gets
    on would rightly be blamed for it.
    """
    dice = random.Random(seed)
    felt = []
    started_s = time.monotonic()
    while time.monotonic() < started_s + for_s:
        chosen = [kind(dice) for kind in dice.sample(_KINDS, dice.choice((1, 2, 3)))]
        pauses_s = [0.0, *(dice.uniform(0.0, LONGEST_PAUSE_S) for _ in chosen[1:])]
        say(f"{time.monotonic() - started_s:6.1f} s: {'; '.join(fault.name for fault in chosen)}")
        recovery, _ = await felt_by(cluster, load, chosen, pauses_s)
        felt.append(recovery)
        say(f"{'':6}   all go on after {recovery.all_go_on_s:.1f} s; {load.num_completed} streams came out whole")
    return felt


async def felt_by(
    cluster: Cluster, load: Load, chosen: Sequence[Fault], pauses_s: Sequence[float] = (0.0,)
) -> tuple[Recovery, Collection[Stream]]:
    """Injects faults into a loaded cluster, each so long after the first, and returns once all streams and processes
    are back. Tells how it was felt, and by which streams.
    """
    await load.until_in_flight()
    in_flight = load.in_flight()
    load.doomed.update(*(fault.dooms for fault in chosen))
    started_s = time.monotonic()
    await asyncio.gather(*(_inject(cluster, *each) for each in zip(chosen, pauses_s, strict=True)))
    await load.until_past(in_flight)
    all_go_on_s = time.monotonic() - started_s
    stall_s = max(stream.longest_stall_s for stream in in_flight)
    await cluster.until_whole()
    load.doomed.clear()
    return Recovery("; ".join(fault.name for fault in chosen), len(in_flight), all_go_on_s, stall_s), in_flight


async def _inject(cluster: Cluster, fault: Fault, pause_s: float) -> None:
    await asyncio.sleep(pause_s)
    await fault.inject(cluster)


def _some(dice: random.Random, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(dice.sample(names, dice.choice((1, 2, len(names))))))
