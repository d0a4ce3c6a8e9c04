"""64 GPUs of 40 adapters each, five times a second, or 128 once, over ten minutes of history.

`-o log_cli=true -o log_cli_level=info` tells what it took.
"""

import logging

import pytest

from browser import Tab
from wide_cluster import WideCluster

log = logging.getLogger(__name__)

pytestmark = [pytest.mark.slow, pytest.mark.alone]

NUM_LOOKS = 30
#: Main thread time of one update: updates come five times a second.
MAX_CPU_MS = 200


class Wider(WideCluster):
    num_gpus = 128


@pytest.fixture
def cluster(num_gpus: int) -> WideCluster:
    return Wider() if num_gpus == 128 else WideCluster()


@pytest.mark.parametrize(("num_gpus", "per_s"), [(64, 5), (128, 1)])
@pytest.mark.parametrize("look", ["heat", "stacked"])
async def test_it_stays_smooth(
    tab: Tab, address: str, cluster: WideCluster, num_gpus: int, per_s: int, look: str
) -> None:
    await tab.open(f"http://{address}/dashboard")
    await tab.page.select_option("#range", "600")
    await tab.page.select_option("#rate", str(per_s))
    await tab.page.select_option("#batch-look", look)
    await tab.waits_until(f"document.querySelectorAll('#gpus article').length === {num_gpus}")
    devtools = await tab.page.context.new_cdp_session(tab.page)
    # The thread's own time, whatever else the machine does.
    await devtools.send("Performance.enable", {"timeDomain": "threadTicks"})

    async def cpu_ms() -> dict[str, float]:
        metrics = (await devtools.send("Performance.getMetrics"))["metrics"]
        return {metric["name"]: metric["value"] * 1e3 for metric in metrics}

    begin, num_looks = await cpu_ms(), cluster.num_looks
    while cluster.num_looks < num_looks + NUM_LOOKS * per_s // 5:
        await tab.page.wait_for_timeout(200)
    end, num_looks = await cpu_ms(), cluster.num_looks - num_looks
    spent = {name: (end[name] - begin[name]) / num_looks for name in ("TaskDuration", "ScriptDuration")}
    log.info(
        "%d GPUs, %s: CPU per update: %.1f ms, %.1f ms of it scripts",
        *(num_gpus, look, spent["TaskDuration"], spent["ScriptDuration"]),
    )
    assert 0 < spent["TaskDuration"] < MAX_CPU_MS
    await tab.waits_until(f"document.querySelectorAll('#batch-table tr').length === {num_gpus}")
    assert not tab.own_errors
