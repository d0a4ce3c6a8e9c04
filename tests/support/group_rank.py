"""A rank of a group in a process of its own: `group_rank.py STORE INDEX SIZE DEVICE SETTINGS ROWS MODEL ADAPTER...`."""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from interpreted_norm import InterpretedNorm
from mixed_batch import Answers, serve
from punica_serve.adapters.folder import read_adapter
from punica_serve.base_model.model_config import read_model_config
from punica_serve.base_model.rank import Rank
from punica_serve.engine.ranks.torch_collectives import TorchCollectives
from punica_serve.protocol import AdapterRef

_TIMEOUT = timedelta(seconds=60)
_DEADLINE_S = 90


@contextmanager
def joined(store: Path, rank: Rank, device: str) -> Iterator[TorchCollectives]:
    """This process as a rank of the group that meets at the file ``store``; ``device`` is cpu or cuda, a GPU each."""
    is_gpu = device == "cuda"
    if is_gpu:
        torch.cuda.set_device(rank.index)
    file_store = FileStore(str(store), rank.size)
    dist.init_process_group(
        "nccl" if is_gpu else "gloo",
        store=file_store,
        rank=rank.index,
        world_size=rank.size,
        timeout=_TIMEOUT,
        device_id=torch.device(device, rank.index) if is_gpu else None,
    )
    try:
        assert dist.group.WORLD is not None
        yield TorchCollectives(dist.group.WORLD, file_store)
    finally:
        gc.collect()  # the engine's graphs, since NCCL would wait for those that hold its exchanges
        dist.destroy_process_group()


def serve_in_two(
    store: Path,
    device: str,
    model: Path,
    adapters: Sequence[AdapterRef],
    *,
    max_fused_rows: int = 0,
    **settings: Any,
) -> Answers:
    """The answers of the first of two ranks, which is this process. ``settings``: of the engine, as JSON has them.

    ``max_fused_rows``: up to here ranks on CPUs run their exchanges as GPUs do them in one kernel with the norm.
    """
    words = (json.dumps(settings), str(max_fused_rows))
    command = [sys.executable, __file__, str(store), "1", "2", device, *words, str(model)]
    command += [ref.uri for ref in adapters]
    path = os.pathsep.join(filter(None, sys.path))
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}) as other:
        try:
            answers = _serve_one(store, Rank(0, 2), device, settings, max_fused_rows, model, adapters)
            assert other.wait(_DEADLINE_S) == 0
            return answers
        finally:
            other.kill()


def _serve_one(
    store: Path,
    rank: Rank,
    device: str,
    settings: dict[str, Any],
    max_fused_rows: int,
    model: Path,
    adapters: Sequence[AdapterRef],
) -> Answers:
    own = "cpu" if device == "cpu" else f"{device}:{rank.index}"
    with joined(store, rank, device) as collectives:
        if max_fused_rows:
            width = read_model_config(model).hidden_size
            folder = store.with_name("pieces")
            collectives = InterpretedNorm(collectives, folder, max_fused_rows, width, torch.float32)
        return serve(model, adapters, collectives, device=own, **settings)


def main(
    store: str, index: str, size: str, device: str, settings: str, max_fused_rows: str, model: str, *adapters: str
) -> None:
    folder = Path(model)
    refs = [read_adapter(Path(adapter), read_model_config(folder)) for adapter in adapters]
    rank = Rank(int(index), int(size))
    _serve_one(Path(store), rank, device, json.loads(settings), int(max_fused_rows), folder, refs)
    # gloo's threads may outlive its group, and the interpreter's end would abort them and so this process.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
