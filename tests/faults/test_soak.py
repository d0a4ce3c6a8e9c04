"""Random faults for as long as one likes: MINUTES=10 SEED=7 make soak. The slow tests run a short time."""

import os
import random

import pytest

from punica_faults import random_faults
from punica_faults.cluster import Cluster
from punica_faults.load import Load
from punica_faults.recovery import Recovery
from punica_faults.references import Reference

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(600)]  # its waits end before, and say more

#: Enough for a handful of faults, in the slow tests.
SHORT_MINUTES = 0.5
#: The same ones each time.
SHORT_SEED = 7


@pytest.mark.timeout(0)  # the run's own end, and the deadlines of all waits in it
async def test_random_faults_lose_nothing(
    cluster: Cluster, references: list[Reference], recoveries: list[Recovery], capsys: pytest.CaptureFixture[str]
) -> None:
    minutes = float(os.environ.get("MINUTES", SHORT_MINUTES))
    seed = int(os.environ.get("SEED") or (random.randrange(10_000) if "MINUTES" in os.environ else SHORT_SEED))

    def say(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)  # noqa: T201

    say(f"\n{minutes:g} minutes of random faults; SEED={seed} makes the same ones")
    load = Load(cluster.stream_urls, references, seed=seed)
    async with load.running():
        recoveries += await random_faults.run_faults(cluster, load, seed=seed, for_s=60 * minutes, say=say)
        await load.stop()
    load.check()
    say(f"{load.num_completed} streams came out whole, {load.num_lost} died with their frontends")
    say(f"the newest scheduler counted {(await cluster.snapshot() or {}).get('counters')}")
