"""Everything breaks under load, and every stream that its client still holds comes out whole."""

import pytest

from punica_faults import faults
from punica_faults.cluster import FRONTENDS, RUNNERS, Cluster
from punica_faults.faults import Fault
from punica_faults.load import Load
from punica_faults.random_faults import LINKS, felt_by
from punica_faults.recovery import Recovery
from punica_faults.references import Reference

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(600)]  # its waits end before, and say more

FAULTS = (
    faults.kill_worker(),
    faults.kill_all_workers(),
    faults.kill(RUNNERS[0]),
    faults.kill(*RUNNERS),
    faults.kill("scheduler"),
    faults.kill(FRONTENDS[1]),
    faults.kill_worker_runner_and_scheduler(),
    faults.kill("scheduler", *RUNNERS),
    faults.kill_worker_again(),
    faults.kill_again(RUNNERS[1]),
    faults.kill_again("scheduler"),
    faults.terminate(RUNNERS[0]),
    faults.terminate(FRONTENDS[0]),
    faults.freeze_worker(),
    faults.freeze(RUNNERS[0]),
    faults.freeze("scheduler"),
    faults.freeze(FRONTENDS[0]),
    faults.freeze("scheduler", RUNNERS[0]),
    *(
        fault
        for names in ((RUNNERS[0],), (FRONTENDS[0],), LINKS)
        for fault in (faults.cut(*names), faults.delay(*names), faults.drop(*names, for_s=faults.LONG_DROP_S))
    ),
    faults.drop(*LINKS, for_s=faults.SHORT_DROP_S),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_every_stream_goes_on_where_it_was_after(
    fault: Fault, cluster: Cluster, references: list[Reference], recoveries: list[Recovery]
) -> None:
    load = Load(cluster.stream_urls, references, seed=FAULTS.index(fault))
    async with load.running():
        recovery, streams = await felt_by(cluster, load, [fault])
        recoveries.append(recovery)
        await load.stop(streams)
    load.check()
