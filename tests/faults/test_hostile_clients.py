"""Hostile clients harm no other client of their frontend."""

import pytest

from punica_faults.cluster import FRONTENDS, Cluster
from punica_faults.hostile import attacked
from punica_faults.load import NUM_STREAMS, Load
from punica_faults.references import Reference
from waits import until

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(600)]  # its waits end before, and say more

#: Most memory that all hostile clients together may cost; a flood held in memory passes it within seconds.
MAX_GROWTH_BYTES = 128 << 20


async def test_hostile_clients_neither_stop_nor_bloat_a_frontend(cluster: Cluster, references: list[Reference]) -> None:
    victim = FRONTENDS[0]
    load = Load({victim: cluster.stream_urls[victim]}, references, seed=0)
    async with load.running():
        await load.until_in_flight()
        before_bytes = cluster.processes[victim].resident_bytes
        async with attacked(cluster.stream_urls[victim]):
            num_completed = load.num_completed
            await load.until_past(load.in_flight())
            await until(lambda: load.num_completed >= num_completed + NUM_STREAMS // 2, "streams come out whole")
            growth_bytes = cluster.processes[victim].resident_bytes - before_bytes
        await load.stop(())
    load.check()
    assert growth_bytes < MAX_GROWTH_BYTES
