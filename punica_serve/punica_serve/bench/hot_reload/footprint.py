"""The cluster's use of GPUs, hosts and disks at one moment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from punica_serve.bench.running_cluster import RunningCluster


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
    gpus = httpx.get(f"{cluster.url}/v1/cluster", trust_env=False).raise_for_status().json()["gpus"]
    return Footprint(
        num_reloads,
        {name: process.resident_bytes for name, process in cluster.processes.items()},
        {name: process.cpu_s for name, process in cluster.processes.items()},
        num_on_gpu=max(len(gpu["resident_adapters"]) for gpu in gpus),
        num_stored=_num_adapters(cluster, "store"),
        num_downloaded=_num_adapters(cluster, "cache"),
    )


def _num_adapters(cluster: RunningCluster, part: str) -> int:
    folder = cluster.data_folder / part
    return sum(name != "incoming" for name in os.listdir(folder)) if folder.is_dir() else 0
