"""Checks of every process once nobody asks for anything."""

from typing import Any

from punica_faults.cluster import FRONTENDS, NUM_GPUS, Cluster
from waits import until

#: Marks of a bug of ours in a log.
BUGS = ("Traceback (most recent call last)", "never retrieved", "was never awaited")


async def audit(cluster: Cluster) -> None:
    """Waits until everything is back where it belongs; AssertionError names what is not."""
    found: list[str] = ["the cluster can't be asked"]

    async def is_clean() -> bool:
        found.clear()
        for name in FRONTENDS:
            found.extend(flaws(await cluster.snapshot(name)))
            found.extend(f"{name}: {flaw}" for flaw in frontend_flaws(await cluster.figures(name)))
        return not found

    await until(is_clean, "all is back", describe=lambda: f"{found}\n{cluster.log_tails()}")
    bugs = [
        f"{process.name}: {bug}: {process.log}"
        for process in cluster.processes.values()
        for bug in BUGS
        if bug in process.log_text()
    ]
    deaths = [death for process in cluster.processes.values() for death in process.unexpected_deaths]
    assert not bugs + deaths, (bugs + deaths, cluster.log_tails())


#: Figures of a frontend that are 0 without clients.
_HELD = ("vllm:num_requests_running", "vllm:num_requests_waiting", "punica_websockets")


def frontend_flaws(figures: dict[str, float] | None) -> list[str]:
    """The figures that are not 0 in a frontend without clients."""
    if figures is None:
        return ["does not answer"]
    return [f"{key} is {figures[key]:g}" for key in _HELD if figures[key]]


def flaws(snapshot: dict[str, Any] | None) -> list[str]:
    """The resources that an idle cluster still holds, and the missing processes."""
    if snapshot is None:
        return ["a frontend can't reach the scheduler"]
    found = []
    if snapshot["queue_length"]:
        found.append(f"{snapshot['queue_length']} requests wait")
    if len(snapshot["gpus"]) != NUM_GPUS:
        found.append(f"{len(snapshot['gpus'])} of {NUM_GPUS} GPUs")
    if snapshot["num_frontends"] != len(FRONTENDS):
        found.append(f"{snapshot['num_frontends']} of {len(FRONTENDS)} frontends")
    for gpu in snapshot["gpus"]:
        num_used = gpu["gpu"]["num_kv_pages"] - gpu["free_kv_pages"]
        if gpu["working_set"] or num_used:
            found.append(f"{gpu['gpu']['uuid']} holds {gpu['working_set']} requests and {num_used} pages")
    counters = snapshot["counters"]
    num_ended = counters["finished"] + counters["cancelled"] + counters["failed"]
    if counters["arrived"] != num_ended:
        found.append(f"{counters['arrived']} requests arrived and {num_ended} ended")
    return found
