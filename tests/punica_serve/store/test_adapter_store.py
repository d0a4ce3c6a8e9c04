import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from punica_serve.adapters.folder import read_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import StoreUnavailable
from punica_serve.protocol import AdapterRef
from punica_serve.store.adapter_store import AdapterStore
from punica_serve.store.directory import DirectoryStore


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> AdapterStore:
    return AdapterStore(str(root))


async def test_keeps_a_copy(store: AdapterStore, root: Path, ref: AdapterRef, model: ModelConfig) -> None:
    assert not await store.exists(ref.digest)
    uri = await store.put(Path(ref.uri), ref.digest)
    shutil.rmtree(ref.uri)
    assert uri == str(root / ref.digest)
    assert await store.exists(ref.digest)
    assert read_adapter(Path(uri), model).digest == ref.digest


async def test_the_same_bytes_again_are_the_same_adapter(store: AdapterStore, root: Path, ref: AdapterRef) -> None:
    assert await store.put(Path(ref.uri), ref.digest) == await store.put(Path(ref.uri), ref.digest)
    assert os.listdir(root) == [ref.digest]


def test_two_who_put_the_same_bytes_at_once(root: Path, ref: AdapterRef) -> None:
    """Without asking first whether they are there."""
    for _ in range(2):
        DirectoryStore(root).put(Path(ref.uri), ref.digest)
    assert os.listdir(root) == [ref.digest]


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
@pytest.mark.parametrize("damage", ["changed", "cut", "gone"])
async def test_a_damaged_copy_is_replaced_beside_its_readers(
    store: AdapterStore, root: Path, ref: AdapterRef, model: ModelConfig, name: str, damage: str
) -> None:
    path = Path(await store.put(Path(ref.uri), ref.digest)) / name
    good = path.read_bytes()
    bad = {"changed": good[:-1] + b"?", "cut": good[:-1], "gone": b""}[damage]
    path.write_bytes(bad)
    with path.open("rb") as reader:
        if damage == "gone":
            path.unlink()
        await store.put(Path(ref.uri), ref.digest)
        assert reader.read() == bad, "nothing is written under a reader"
    assert read_adapter(root / ref.digest, model).digest == ref.digest
    assert os.listdir(root) == [ref.digest]


async def test_deletes_and_lists(store: AdapterStore, make_adapter: Callable[[int], AdapterRef]) -> None:
    assert await store.digests() == frozenset()
    first, second = make_adapter(1), make_adapter(2)
    for ref in (first, second):
        await store.put(Path(ref.uri), ref.digest)
    assert await store.digests() == {first.digest, second.digest}
    for _ in range(2):
        await store.delete(first.digest)
    assert await store.digests() == {second.digest}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
async def test_a_full_or_broken_disk_leaves_nothing(
    store: AdapterStore, root: Path, ref: AdapterRef, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[:10])
        raise OSError(code, "it fails", str(target))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", fail)
        with pytest.raises(StoreUnavailable, match="is full" if code == errno.ENOSPC else "is not available") as caught:
            await store.put(Path(ref.uri), ref.digest)
    assert str(root) not in caught.value.message
    assert not os.listdir(root)
    await store.put(Path(ref.uri), ref.digest)
    assert await store.exists(ref.digest)


async def test_a_folder_that_hangs_is_given_up(root: Path, ref: AdapterRef, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def hang(*arguments: Any) -> None:
        answers.wait(60)

    store = AdapterStore(str(root), timeout_s=0.1, transfer_timeout_s=0.1)
    with monkeypatch.context() as patch:
        patch.setattr(DirectoryStore, "holds", hang)
        for _ in range(10):  # more than it has threads
            with pytest.raises(StoreUnavailable, match=r"longer than 0.1 s"):
                await store.put(Path(ref.uri), ref.digest)
        answers.set()


async def test_what_a_process_left_that_died_is_removed(store: AdapterStore, root: Path, ref: AdapterRef) -> None:
    await store.put(Path(ref.uri), ref.digest)
    dead, young = root / ".passing-dead", root / ".passing-young"
    dead.mkdir()
    young.mkdir()
    os.utime(dead, (0, 0))
    assert await store.digests() == {ref.digest}
    assert not dead.exists()
    assert young.exists()


async def test_objects_are_an_adapter_once_the_last_of_them_is_there(ref: AdapterRef) -> None:
    """In the memory of this process, which has objects as S3 does, and no renaming."""
    store, memory = AdapterStore("memory://adapters", timeout_s=60.0), fsspec.filesystem("memory")
    memory.put_file(f"{ref.uri}/adapter_model.safetensors", f"/adapters/{ref.digest}/adapter_model.safetensors")
    assert not await store.exists(ref.digest) and await store.digests() == {ref.digest}
    for _ in range(2):
        assert await store.put(Path(ref.uri), ref.digest) == f"memory://adapters/{ref.digest}"
        assert await store.exists(ref.digest)
    for _ in range(2):
        await store.delete(ref.digest)
    assert not await store.exists(ref.digest) and not memory.find("/adapters")


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
@pytest.mark.parametrize("damage", ["changed", "cut", "gone"])
async def test_damaged_objects_are_replaced(ref: AdapterRef, name: str, damage: str) -> None:
    store, memory = AdapterStore("memory://damaged", timeout_s=60.0), fsspec.filesystem("memory")
    await store.put(Path(ref.uri), ref.digest)
    path, good = f"/damaged/{ref.digest}/{name}", (Path(ref.uri) / name).read_bytes()
    if damage == "gone":
        memory.rm_file(path)
    else:
        memory.pipe_file(path, good[:-1] + b"?" if damage == "changed" else good[:-1])
    await store.put(Path(ref.uri), ref.digest)
    assert memory.cat_file(path) == good


async def test_a_sound_object_is_not_written_again(ref: AdapterRef) -> None:
    store, memory = AdapterStore("memory://sound", timeout_s=60.0), fsspec.filesystem("memory")
    await store.put(Path(ref.uri), ref.digest)
    path = f"/sound/{ref.digest}/adapter_model.safetensors"
    written = memory.modified(path)
    await store.put(Path(ref.uri), ref.digest)
    assert memory.modified(path) == written
