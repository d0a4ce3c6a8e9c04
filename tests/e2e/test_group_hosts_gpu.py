"""A group over two hosts by NCCL, in CUDA graphs: two process trees of one machine, each with one of its GPUs.

NCCL is kept from the GPUs' own links and from shared memory, so it takes sockets, as it would between hosts.
"""

import asyncio
import os
import signal
from pathlib import Path

import pytest
import torch

from host_group import FOLLOWERS, LEADER, HostGroup, on_two_hosts
from process_tree import alive
from up_cluster import Stream
from waits import until

NUM_GPUS = torch.cuda.device_count()

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.timeout(600),
    pytest.mark.skipif(NUM_GPUS < 2, reason=f"needs 2 GPUs, and there are {NUM_GPUS}"),
]

_ON_SOCKETS = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_DEBUG": "INFO",
}
_ANSWERS = {"roman": "XLII", "hex": "2a", "binary": "101010", "english": "forty-two", "french": "quarante-deux"}
_NUM_ROUNDS = 40
#: Triton compiles its kernels, in two processes at once.
_READY_S = 280.0


async def _ask(cluster: HostGroup, number: int) -> None:
    lora_id, expected = list(_ANSWERS.items())[number % len(_ANSWERS)]
    stream = Stream()
    request = {"prompt": "42", "lora_id": lora_id, "max_tokens": 20, "temperature": 0.0}
    await cluster.stream(request, stream)
    assert stream.text.strip() == expected


async def test_nccl_joins_them_over_sockets_and_graphs_do_not_hang(tmp_path: Path) -> None:
    environments = [{**_ON_SOCKETS, "NCCL_HOSTID": f"host{host}", "CUDA_VISIBLE_DEVICES": f"{host}"} for host in (0, 1)]
    settings = {"dtype": "float32", "num_kv_pages": 512, "num_lora_pages": 10}
    runner = {"devices": ["cuda:0"]}
    with on_two_hosts(tmp_path, environments, _READY_S, engine=settings, runner=runner) as cluster:
        assert "via NET/Socket" in cluster.logs()
        for _ in range(_NUM_ROUNDS):
            async with asyncio.TaskGroup() as tasks:
                for number in range(16):
                    tasks.create_task(_ask(cluster, number))
        before = cluster.processes(LEADER) + cluster.processes(FOLLOWERS)
        os.kill(cluster.processes_of(1, FOLLOWERS)[0], signal.SIGKILL)
        await until(lambda: not alive(before), describe=cluster.logs)
        await until(lambda: cluster.num_gpus() == 1, describe=cluster.logs)
        await _ask(cluster, 1)
        told = [line for line in cluster.logs().splitlines() if "NCCL version" in line or "may deadlock" in line]
        print("\n".join(told))  # noqa: T201
