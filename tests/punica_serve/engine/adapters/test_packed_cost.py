"""The processor time of loads from packed forms, beside that of hashing and packing."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from punica_serve.bench.coldstart_loads.load_times import LoadClock
from punica_serve.bench.random_adapters import pack_to_disk, write_folders
from punica_serve.engine.adapters.host_cache import HostCache
from punica_serve.engine.adapters.packed_store import PackedStore
from punica_serve.engine.adapters.reader import AdapterReader
from punica_serve.engine.memory.pinned_memory import HostMemory
from punica_serve.protocol import AdapterRef
from punica_serve.shapes import shape_of
from punica_serve.store.packed_folder import PackedCache
from waits import DEADLINE_S

_CPU, _DTYPE = torch.device("cpu"), torch.bfloat16
#: The goal is 0.2, and `bench coldstart-loads` has 0.16 to 0.18. Here, with a fourth of the layers and two cores that
#: the process and the load share, it is 0.24 to 0.29.
_MOST = 0.35
#: The least of many loads is one that nothing disturbed.
_NUM_ROUNDS = 6


@pytest.mark.slow
def test_a_packed_form_is_loaded_in_a_third_of_the_processor_time(tmp_path: Path) -> None:
    model = replace(shape_of("llama-2-7b"), num_hidden_layers=8)
    refs = write_folders(tmp_path / "adapters", model, 5, 16, _CPU, lambda: None)
    cache = PackedCache(tmp_path / "cache", 1 << 40)
    pack_to_disk(refs, cache, model, _DTYPE, lambda: None)
    memory = HostMemory(1 << 26, is_shared=sys.platform == "linux")
    memory.bytes.zero_()  # the system hands out memory as it is touched, once
    host_cache, store = HostCache(memory), PackedStore(cache, model, _DTYPE, memory)

    unpacking = AdapterReader(host_cache, model, _DTYPE, _CPU)
    packed_reader = AdapterReader(host_cache, model, _DTYPE, _CPU, store)
    process = store.start_process(DEADLINE_S)
    times_s = [
        [_spent_on_load(reader, host_cache, ref, process) for reader in (unpacking, packed_reader)]
        for ref in refs * _NUM_ROUNDS  # in turn: what else the machine does costs both
    ]
    unpacking.close()
    packed_reader.close()
    unpacked, packed = map(min, zip(*times_s, strict=True))
    assert packed <= _MOST * unpacked, f"{packed / unpacked:.3f} of {1e3 * unpacked:.1f} ms"


def _spent_on_load(reader: AdapterReader, host_cache: HostCache, ref: AdapterRef, process: int | None) -> float:
    """Processor time of all threads, in seconds, of a load of an adapter that is not in host memory.

    ``process``: the one that reads packed files.
    """
    clock = LoadClock(process)
    copy = reader.start(ref).result(DEADLINE_S)
    spent = clock.time().processor_s
    host_cache.release(copy)
    host_cache.evict(ref.digest)
    return spent
