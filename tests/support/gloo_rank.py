"""A rank of a gloo group in a process of its own: `python gloo_rank.py STORE INDEX SIZE MODEL ADAPTER...`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from mixed_batch import serve
from punica_serve.adapters.folder import read_adapter
from punica_serve.base_model.model_config import read_model_config
from punica_serve.engine.ranks.torch_collectives import TorchCollectives

_TIMEOUT = timedelta(seconds=60)


@contextmanager
def joined(store: Path, index: int, size: int) -> Iterator[TorchCollectives]:
    """This process as a rank of the group that meets at the file ``store``."""
    dist.init_process_group("gloo", store=FileStore(str(store), size), rank=index, world_size=size, timeout=_TIMEOUT)
    try:
        assert dist.group.WORLD is not None
        yield TorchCollectives(dist.group.WORLD)
    finally:
        dist.destroy_process_group()


def main(store: str, index: str, size: str, model: str, *adapters: str) -> None:
    folder = Path(model)
    refs = [read_adapter(Path(adapter), read_model_config(folder)) for adapter in adapters]
    with joined(Path(store), int(index), int(size)) as collectives:
        serve(folder, refs, collectives)


if __name__ == "__main__":
    main(*sys.argv[1:])
