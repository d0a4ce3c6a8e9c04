"""Random adapters in bulk, each with unique bytes: a thousand in host memory, or hundreds of PEFT folders, fast.

The numbers are drawn on the device and copied to the host, since drawing 40 GB of them on CPU cores would take minutes.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import torch

from punica_serve.adapters.folder import CONFIG_NAME, WEIGHTS_NAME, load_adapter, read_adapter
from punica_serve.adapters.layout import weight_name
from punica_serve.adapters.targets import linear_modules
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.adapter_packer import pack_adapter
from punica_serve.engine.adapters.packed_file import PackedLayout
from punica_serve.engine.adapters.packed_store import PackedStore
from punica_serve.engine.adapters.packing import packed_num_bytes
from punica_serve.engine.adapters.random_pages import noise, pack_random
from punica_serve.engine.engine import Engine
from punica_serve.errors import ConfigError
from punica_serve.numbers import counted
from punica_serve.process.outputs import writing
from punica_serve.process.private_files import open_own_file
from punica_serve.process.usable_cores import usable_cores
from punica_serve.protocol import AdapterRef
from punica_serve.store.cache_folder import CacheFolder
from punica_serve.store.packed_folder import PackedCache

#: More threads would only compete for memory bandwidth.
_MAX_THREADS = 8

#: The commands' option for adapter files.
_OPTION = "--folder"

#: An engine that was closed may still write one packed form, which takes no longer on any disk.
_LAST_WRITE_S = 10.0
_PAUSE_S = 0.05

T = TypeVar("T")

#: Called after each adapter.
OnMade = Callable[[], None]


@contextmanager
def adapter_files(parent: Path | None) -> Iterator[Path]:
    """Creates a temporary folder for adapter files in ``parent``, or in the system's folder; it is removed at the end.

    Results don't depend on that: what can't be removed stays. Raises ConfigError if it can't be created.
    """
    with writing(parent or Path("the system's temporary folder"), _OPTION):
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix="punica-bench-", dir=parent, ignore_cleanup_errors=True)
    with made as folder:
        try:
            yield Path(folder)
        finally:
            _remove(Path(folder))


def _remove(folder: Path) -> None:
    """Removes a folder to which an engine that was closed may still write."""
    deadline_s = time.monotonic() + _LAST_WRITE_S
    while folder.exists() and time.monotonic() < deadline_s:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            time.sleep(_PAUSE_S)


def fill_host_cache(
    engine: Engine,
    count: int,
    rank: int,
    dtype: torch.dtype,
    on_made: OnMade,
    modules: Sequence[str] | None = None,
) -> list[AdapterRef]:
    """Puts ``count`` adapters, of all projections by default, into the engine's host cache, in its own layout.

    Raises ConfigError if the cache is too small for them.
    """
    ranks = dict.fromkeys(modules or engine.share.linear_shapes, rank)
    num_bytes = packed_num_bytes(ranks, engine.share, dtype)

    def make(seed: int) -> AdapterRef:
        ref = AdapterRef(digest=f"random-r{rank}-{seed}", uri="", num_bytes=num_bytes, ranks=ranks)
        copy = engine.host_cache.make(
            ref.digest,
            num_bytes,
            lambda memory: pack_random(
                memory,
                noise(num_bytes // dtype.itemsize, dtype, engine.device, seed),
                ranks,
                engine.share,
                dtype,
            ),
        )
        engine.host_cache.release(copy)
        on_made()
        return ref

    refs = _in_threads(make, count)
    if not all(ref.digest in engine.host_cache for ref in refs):
        message = (
            f"`engine.host_cache_bytes` is too small for {counted(count, 'adapter')} of {num_bytes} bytes; raise it"
        )
        raise ConfigError(message, param="engine.host_cache_bytes")
    return refs


def write_folders(
    folder: Path, model: ModelConfig, count: int, rank: int, device: torch.device, on_made: OnMade
) -> list[AdapterRef]:
    """Writes ``count`` PEFT folders in bfloat16, scaling 1, and reads each once, to check it and fill the page cache.

    Raises ConfigError if they can't be written, for example on a full disk.
    """
    file = _AdapterFile.of(model, rank)

    def make(seed: int) -> AdapterRef:
        path = folder / f"{seed}"
        path.mkdir(parents=True)
        (path / CONFIG_NAME).write_bytes(file.config)
        numbers = noise(file.num_elements, torch.bfloat16, device, seed).cpu()
        with (path / WEIGHTS_NAME).open("wb") as weights:
            weights.write(file.header)
            weights.write(numbers.view(torch.uint8).numpy().data)
        ref = read_adapter(path, model)
        on_made()
        return ref

    with writing(folder, _OPTION):
        return _in_threads(make, count)


@dataclass(frozen=True, slots=True)
class _AdapterFile:
    """The parts that all folders of one shape share."""

    config: bytes
    #: The safetensors header, with its length in front.
    header: bytes
    num_elements: int

    @classmethod
    def of(cls, model: ModelConfig, rank: int) -> "_AdapterFile":
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": model.name,
            "r": rank,
            "lora_alpha": rank,
            "target_modules": list(model.linear_shapes),
        }
        shapes = dict(_tensor_shapes(model, rank))
        ends = list(accumulate(rows * columns for rows, columns in shapes.values()))
        header = {
            name: {"dtype": "BF16", "shape": shape, "data_offsets": [2 * (end - shape[0] * shape[1]), 2 * end]}
            for (name, shape), end in zip(shapes.items(), ends, strict=True)
        }
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)  # the format's data alignment
        return cls(json.dumps(config, indent=2).encode(), len(text).to_bytes(8, "little") + text, ends[-1])


def _tensor_shapes(model: ModelConfig, rank: int) -> Iterator[tuple[str, tuple[int, int]]]:
    for _, module, path in linear_modules(model):
        out_features, in_features = model.linear_shapes[module]
        yield weight_name(path, "A"), (rank, in_features)
        yield weight_name(path, "B"), (out_features, rank)


def _in_threads(make: Callable[[int], T], count: int) -> list[T]:
    with ThreadPoolExecutor(min(_MAX_THREADS, usable_cores())) as threads:
        return list(threads.map(make, range(count)))


@contextmanager
def packed_file(ref: AdapterRef, cache: PackedCache, model: ModelConfig, dtype: torch.dtype) -> Iterator[int]:
    """A descriptor of the packed form that ``pack_to_disk`` has written."""
    descriptor = open_own_file(CacheFolder(cache.folder).packed.path(ref.digest, PackedLayout.of(model, dtype).name))
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def pack_to_disk(
    refs: Sequence[AdapterRef], cache: PackedCache, model: ModelConfig, dtype: torch.dtype, on_made: OnMade
) -> None:
    """Writes the packed forms of adapters in folders, as workers do after their first loads. Raises OSError."""
    store = PackedStore(cache, model, dtype)

    def pack(number: int) -> None:
        ref = refs[number]
        memory = torch.empty(packed_num_bytes(ref.ranks, model, dtype), dtype=torch.uint8)
        store.write(ref, pack_adapter(load_adapter(ref, model), model, dtype, memory))
        on_made()

    _in_threads(pack, len(refs))
    store.close()
