"""One rank of `bench collectives`, in a process of its own."""

from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from punica_kernels.bench.timing import graph_us
from punica_serve.base_model.model_config import ModelDtype
from punica_serve.base_model.rank import Rank
from punica_serve.bench.collectives.exchange_ways import WAYS
from punica_serve.engine.ranks.torch_collectives import TorchCollectives
from punica_serve.errors.reasons import first_line

#: Exchanges in one CUDA graph.
_NUM_CALLS = 32


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """The options of `bench collectives`."""

    device: str
    num_ranks: int
    ways: tuple[str, ...]
    #: Bytes of the tensor of each rank.
    sizes: tuple[int, ...]
    num_replays: int = 7
    dtype: ModelDtype = "bfloat16"
    #: The longest wait for the other ranks.
    timeout_s: float = 60.0


def run_rank(rank: Rank, settings: ExchangeSettings, store: Path, results: Connection) -> None:
    """Joins the group that meets at the file ``store``, and sends a message for each way and size.

    A message is (way, bytes, microseconds), or (way, bytes, the error) after which the way is left.
    """
    from torch._C._distributed_c10d import FileStore

    is_gpu = settings.device == "cuda"
    device = torch.device("cuda", rank.index) if is_gpu else torch.device("cpu")
    if is_gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    file_store = FileStore(str(store), rank.size)
    dist.init_process_group(
        "nccl" if is_gpu else "gloo",
        store=file_store,
        rank=rank.index,
        world_size=rank.size,
        timeout=timedelta(seconds=settings.timeout_s),
        device_id=device if is_gpu else None,
    )
    try:
        assert dist.group.WORLD is not None
        collectives = TorchCollectives(dist.group.WORLD, file_store)
        for way in settings.ways:
            _run_way(way, collectives, device, settings, results)
    finally:
        dist.destroy_process_group()


def _run_way(
    way: str, collectives: TorchCollectives, device: torch.device, settings: ExchangeSettings, results: Connection
) -> None:
    dtype: torch.dtype = getattr(torch, settings.dtype)
    for num_bytes in settings.sizes:
        try:
            exchange = WAYS[way](collectives, device, num_bytes // dtype.itemsize, dtype)
            microseconds = graph_us(
                [exchange] * (_NUM_CALLS if device.type == "cuda" else 1), device, settings.num_replays
            )
        except (RuntimeError, AttributeError, ImportError) as error:
            results.send((way, num_bytes, first_line(error)))
            return
        results.send((way, num_bytes, microseconds))
