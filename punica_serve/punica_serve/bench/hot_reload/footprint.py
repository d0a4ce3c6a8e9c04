"""The cluster's use of GPUs, hosts and disks at one moment."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from punica_serve.bench.running_cluster import RunningCluster

#: The load may keep the scheduler from answering the frontend in time, and the frontend from answering us.
_PATIENCE_S = 60.0
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory and CPU time of each process, and adapters at each place."""

    num_reloads: int
    resident_bytes: Mapping[str, int]
    cpu_s: Mapping[str, float]
    #: Adapters in the memory of the GPU that has the most of them.
    num_on_gpu: int
    #: Adapters in the store, and in the host's disk cache.
    num_stored: int
    num_downloaded: int

    @property
    def most_copies(self) -> int:
        return max(self.num_on_gpu, self.num_stored, self.num_downloaded)


def footprint_of(cluster: RunningCluster, num_reloads: int) -> Footprint:
    """Blocks. Raises httpx's errors."""
    gpus = _gpus(cluster.url)
    return Footprint(
        num_reloads,
        {name: process.resident_bytes for name, process in cluster.processes.items()},
        {name: process.cpu_s for name, process in cluster.processes.items()},
        num_on_gpu=max(len(gpu["resident_adapters"]) for gpu in gpus),
        num_stored=_num_adapters(cluster, "store"),
        num_downloaded=_num_adapters(cluster, "cache"),
    )


def _gpus(url: str) -> list[Any]:
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        answer = httpx.get(f"{url}/v1/cluster", timeout=_PATIENCE_S, trust_env=False)
        if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or time.monotonic() > deadline_s:
            gpus: list[Any] = answer.raise_for_status().json()["gpus"]
            return gpus
        time.sleep(_POLL_S)


def _num_adapters(cluster: RunningCluster, part: str) -> int:
    folder = cluster.data_folder / part
    return sum(name != "incoming" for name in os.listdir(folder)) if folder.is_dir() else 0
