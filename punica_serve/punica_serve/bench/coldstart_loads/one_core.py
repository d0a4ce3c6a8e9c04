"""The least that loads need: what one core does alone, while nobody else works on the same adapter."""

import hashlib
import os
import time
from pathlib import Path

from punica_serve.adapters.folder import WEIGHTS_NAME
from punica_serve.engine.adapters.chunk_process import PIECE_BYTES
from punica_serve.engine.adapters.packed_chunk import BLOCK_BYTES, read_checked
from punica_serve.engine.adapters.packed_header import PackedName, open_chunks
from punica_serve.engine.adapters.range_reader import RangeReader
from punica_serve.protocol import AdapterRef


def sha_s(ref: AdapterRef) -> float:
    """Seconds of the SHA-256 of a folder's weights."""
    content = (Path(ref.uri) / WEIGHTS_NAME).read_bytes()
    started_s = time.perf_counter()
    hashlib.sha256(content).digest()
    return time.perf_counter() - started_s


def read_s(descriptor: int, name: PackedName, memory: memoryview) -> float:
    """Processor seconds of reading a packed file into memory that was used before, and of checking it."""
    with RangeReader(os.dup(descriptor)) as file:
        started_s = time.thread_time()
        for chunk in open_chunks(file, name, memory[: file.num_bytes() - BLOCK_BYTES]):
            read_checked(file, chunk, PIECE_BYTES)
        return time.thread_time() - started_s
