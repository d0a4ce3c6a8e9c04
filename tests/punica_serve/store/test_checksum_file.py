"""A download's checksum file is trusted only where no other user could write it, and shows later damage."""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from file_server import FileServer
from punica_serve.adapters.stream_hash import StreamHash
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.host_cache import HostCache
from punica_serve.engine.adapters.packed_store import PackedStore
from punica_serve.engine.adapters.reader import AdapterReader
from punica_serve.engine.memory.pinned_memory import HostMemory
from punica_serve.errors import AdapterRejected
from punica_serve.protocol import AdapterRef
from punica_serve.store.cache_folder import CacheFolder
from punica_serve.store.disk_cache import DiskCache
from punica_serve.store.packed_folder import PackedCache
from waits import DEADLINE_S


@pytest.fixture
def local(tmp_path: Path, ref: AdapterRef, http_server: FileServer) -> AdapterRef:
    """The adapter as this host has downloaded it."""

    async def fetch() -> Path:
        cache = DiskCache(tmp_path / "cache", 1 << 30)
        remote = msgspec.structs.replace(ref, uri=http_server.add_adapter(ref, "/store/adapter"))
        folder = await cache.fetch(remote)
        await cache.close()
        return folder

    return msgspec.structs.replace(ref, uri=str(asyncio.run(fetch())))


@pytest.fixture
def num_hashed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many weights were hashed by SHA-256 as they were read."""
    seen: list[object] = []

    def spy(memory: object, hasher: object, helpers: object) -> object:
        if isinstance(hasher, type(hashlib.sha256())):
            seen.append(hasher)
        return StreamHash(memory, hasher, helpers)  # type: ignore[arg-type]

    monkeypatch.setattr("punica_serve.adapters.folder.StreamHash", spy)
    return lambda: len(seen)


def load(ref: AdapterRef, cache: Path, model: ModelConfig) -> None:
    """As a worker that has not packed it yet."""
    store = PackedStore(PackedCache(cache, 0), model, torch.float32)
    reader = AdapterReader(HostCache(HostMemory(1 << 24)), model, torch.float32, torch.device("cpu"), store)
    try:
        reader.start(ref).result(DEADLINE_S)
    finally:
        reader.close()


def test_a_download_is_not_hashed_again(
    tmp_path: Path, local: AdapterRef, model: ModelConfig, num_hashed: Callable[[], int]
) -> None:
    load(local, tmp_path / "cache", model)
    assert num_hashed() == 0


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
@pytest.mark.parametrize("place", [0, -1])
def test_a_byte_that_changed_since_is_found(
    tmp_path: Path, local: AdapterRef, model: ModelConfig, name: str, place: int
) -> None:
    file = Path(local.uri) / name
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    with pytest.raises(AdapterRejected, match="changed on disk"):
        load(local, tmp_path / "cache", model)


@pytest.mark.parametrize("content", [b"", b"0" * 96, None])
def test_damaged_or_missing_checksums_cost_only_time(
    tmp_path: Path, local: AdapterRef, model: ModelConfig, content: bytes | None
) -> None:
    file = Path(local.uri) / "checksums"
    assert len(file.read_bytes()) == 96
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    load(local, tmp_path / "cache", model)


def test_checksums_of_another_adapter_are_not_taken(
    tmp_path: Path, local: AdapterRef, model: ModelConfig, make_adapter: Callable[[int], AdapterRef]
) -> None:
    """Though they are those of the files beside them."""
    other = make_adapter(1)
    with pytest.raises(AdapterRejected, match="changed on disk"):
        load(msgspec.structs.replace(other, uri=local.uri), tmp_path / "cache", model)


@pytest.mark.parametrize(
    "place", ["", "DIGEST", "DIGEST/checksums", "DIGEST/adapter_config.json", "DIGEST/adapter_model.safetensors"]
)
def test_what_others_may_have_written_is_hashed(
    tmp_path: Path, local: AdapterRef, model: ModelConfig, num_hashed: Callable[[], int], place: str
) -> None:
    path = tmp_path / "cache" / place.replace("DIGEST", local.digest)
    path.chmod(path.stat().st_mode | 0o020)
    load(local, tmp_path / "cache", model)
    assert num_hashed() == 1


def test_a_folder_outside_the_cache_is_hashed(tmp_path: Path, local: AdapterRef) -> None:
    elsewhere = Path(local.uri).rename(tmp_path / local.digest)
    assert (elsewhere / "checksums").exists()
    assert CacheFolder(tmp_path / "cache").checksums(elsewhere) is None
