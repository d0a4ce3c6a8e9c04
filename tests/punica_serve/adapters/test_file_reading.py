"""Reads the files of adapters: in blocks, of which the first are hashed early."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from punica_serve.adapters import file_reading
from punica_serve.adapters.file_reading import read_and_hash
from punica_serve.adapters.stream_hash import StreamHash


@pytest.mark.parametrize("num_bytes", [0, 1, 100, 130, 1000])
def test_hashing_begins_after_few_bytes(tmp_path: Path, num_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_reading, "_FIRST_BYTES", 100)
    monkeypatch.setattr(file_reading, "_BLOCK_BYTES", 400)
    path, memory = tmp_path / "weights", np.zeros(num_bytes, dtype=np.uint8)
    path.write_bytes(np.random.default_rng(0).bytes(num_bytes))
    ends: list[int] = []

    class Spy(StreamHash):
        def fill(self, num_bytes: int) -> None:
            ends.append(num_bytes)
            super().fill(num_bytes)

    stream = Spy(memory, hashlib.sha256())
    with path.open("rb") as file:
        assert read_and_hash(file, memory, stream) == num_bytes
    assert ends == [end for end in (100, 500, 900) if end < num_bytes] + [num_bytes] * (num_bytes > 0)
    assert stream.digest() == hashlib.sha256(path.read_bytes()).digest()
