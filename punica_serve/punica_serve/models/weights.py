"""Reads tensors of safetensors files."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError, safe_open
from torch import Tensor

from punica_serve.base_model.weight_headers import StoredTensor
from punica_serve.errors import ModelRejected

Key = TypeVar("Key")


def read_weights(stored: Mapping[Key, StoredTensor]) -> Iterator[tuple[Key, Tensor]]:
    """Yields the tensors one by one, file by file, as they are stored, in memory mapped from the file.

    Where only a part of a tensor is wanted, only that part's pages are read from the disk.

    Raises ModelRejected if a file can't be read.
    """
    for path in dict.fromkeys(tensor.path for tensor in stored.values()):
        with _read_errors(path), safe_open(path, framework="pt") as file:
            for key, tensor in stored.items():
                if tensor.path == path:
                    whole = file.get_slice(tensor.name) if tensor.index else file.get_tensor(tensor.name)
                    yield key, whole[tensor.index] if tensor.index else whole


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    """Turns errors of reading a file into ModelRejected, which names it."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ModelRejected(f"{path} can't be read as safetensors: {error}", param=path.name) from error
