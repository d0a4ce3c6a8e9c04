"""Faults at random, from a seed: the same seed breaks the same things in the same order."""

import asyncio
import random
import time
from collections.abc import Callable, Collection

from punica_faults import faults
from punica_faults.cluster import FRONTENDS, RUNNERS, WORKERS_PER_RUNNER, Cluster
from punica_faults.faults import Fault
from punica_faults.load import Load, Stream
from punica_faults.recovery import Recovery

LINKS = (*RUNNERS, *FRONTENDS)

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


async def tell(cluster: Cluster, load: Load, *, seed: int, for_s: float, say: Callable[[str], None]) -> list[Recovery]:
    """Breaks one or two things at a time until the time is up, and waits each time until all streams go on.

    So no stream is killed three times without getting on, which would rightly look like the stream's own fault.
    """
    dice = random.Random(seed)
    felt = []
    started_s = time.monotonic()
    while time.monotonic() < started_s + for_s:
        chosen = [dice.choice(_KINDS)(dice) for _ in range(dice.choice((1, 1, 2)))]
        say(f"{time.monotonic() - started_s:6.1f} s: {'; '.join(fault.name for fault in chosen)}")
        recovery, _ = await felt_by(cluster, load, chosen)
        felt.append(recovery)
        say(f"{'':6}   all go on after {recovery.all_go_on_s:.1f} s; {load.num_completed} streams came out whole")
    return felt


async def felt_by(cluster: Cluster, load: Load, chosen: list[Fault]) -> tuple[Recovery, Collection[Stream]]:
    """Injects these faults at once into a loaded cluster, and returns once every stream and every process is back.

    Tells how it was felt, and by which streams.
    """
    await load.until_in_flight()
    in_flight = load.in_flight()
    load.doomed.update(*(fault.dooms for fault in chosen))
    started_s = time.monotonic()
    await asyncio.gather(*(fault.inject(cluster) for fault in chosen))
    await load.until_past(in_flight)
    all_go_on_s = time.monotonic() - started_s
    stall_s = max(stream.longest_stall_s for stream in in_flight)
    await cluster.until_whole()
    load.doomed.clear()
    return Recovery("; ".join(fault.name for fault in chosen), len(in_flight), all_go_on_s, stall_s), in_flight


def _some(dice: random.Random, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(dice.sample(names, dice.choice((1, 2, len(names))))))
