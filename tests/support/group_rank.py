"""A rank of a group in a process of its own: `group_rank.py STORE INDEX SIZE DEVICE SETTINGS ROWS MODEL ADAPTER...`."""

import gc
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from interpreted_norm import InterpretedNorm
from mixed_batch import Answers, serve
from punica_serve.adapters.folder import read_adapter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.rank import Rank
from punica_serve.engine.ranks.torch_collectives import TorchCollectives
from punica_serve.protocol import AdapterRef

_TIMEOUT = timedelta(seconds=60)
#: Both ranks have ended by then. On GPUs they compile kernels.
_DEADLINE_S = 120.0


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
    """The answers of the first of two ranks. ``settings``: of the engine, as JSON has them. See also ``log_of``.

    Each has a new process, since one that has been in a group before gets slower exchanges on GPUs.
    ``max_fused_rows``: up to here ranks on CPUs run their exchanges as GPUs do them in one kernel with the norm.
    """
    words = (device, json.dumps(settings), str(max_fused_rows), str(model), *(ref.uri for ref in adapters))
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    deadline_s = time.monotonic() + _DEADLINE_S
    with ExitStack() as stack:
        ranks = []
        for index in ("0", "1"):
            command = [sys.executable, __file__, str(store), index, "2", *words]
            ranks.append(stack.enter_context(subprocess.Popen(command, env=environment)))
            stack.callback(ranks[-1].kill)
        for rank in ranks:
            assert rank.wait(max(0.0, deadline_s - time.monotonic())) == 0
    return msgspec.msgpack.decode(_answers_file(store).read_bytes(), type=Answers)


def log_of(store: Path) -> str:
    """The first rank's."""
    return _log_file(store).read_text()


def _answers_file(store: Path) -> Path:
    return store.with_name("answers")


def _log_file(store: Path) -> Path:
    return store.with_name("log")


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
    if rank.index == 0:
        logging.basicConfig(filename=_log_file(Path(store)), level=logging.INFO)
    answers = _serve_one(Path(store), rank, device, json.loads(settings), int(max_fused_rows), folder, refs)
    if rank.index == 0:
        _answers_file(Path(store)).write_bytes(msgspec.msgpack.encode(answers))
    # gloo's threads may outlive its group, and the interpreter's end would abort them and so this process.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
