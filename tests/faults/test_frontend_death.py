"""Requests whose clients died with their frontend are nobody's, and run no further."""

import re
import time

import pytest

from punica_faults.cluster import FRONTENDS, Cluster
from punica_faults.load import NUM_STREAMS, Load
from punica_faults.recovery import Recovery
from punica_faults.references import Reference
from waits import until

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(600)]  # its waits end before, and say more


def ends_of_links(log: str) -> list[str]:
    """Why frontends left, but those that were only taken for dead, as a slow machine's may be."""
    ends = re.findall(r"frontend-\w+ left: (.*)", log)
    return [end for end in ends if "the peer has sent nothing" not in end]


async def test_a_dead_frontends_requests_are_cancelled_when_its_link_breaks(
    cluster: Cluster, references: list[Reference], recoveries: list[Recovery]
) -> None:
    doomed, other = FRONTENDS
    load = Load({doomed: cluster.stream_urls[doomed]}, references, seed=0)

    async def num_held() -> int | None:
        """None while nobody can tell."""
        if (snapshot := await cluster.snapshot(other)) is None:
            return None
        held: int = snapshot["queue_length"] + sum(gpu["working_set"] for gpu in snapshot["gpus"])
        return held

    async def are_most_held() -> bool:
        return (await num_held() or 0) > NUM_STREAMS / 2

    async def is_none_held() -> bool:
        return await num_held() == 0

    async with load.running():
        await load.until_in_flight()
        await until(are_most_held, "the scheduler holds most of them")
        load.doomed.add(doomed)
        load.is_stopping = True
        num_before = len(cluster.processes["scheduler"].log_text())
        killed_s = time.monotonic()
        cluster.processes[doomed].kill()
        await until(is_none_held, "the scheduler holds none of them")
        gone_s = time.monotonic() - killed_s
    load.check()
    recoveries.append(Recovery(f"kill {doomed}, until its requests are cancelled", NUM_STREAMS, gone_s, None))
    assert ends_of_links(cluster.processes["scheduler"].log_text()[num_before:]), "they waited for a timeout"
