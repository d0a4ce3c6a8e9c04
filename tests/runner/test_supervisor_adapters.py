"""Adapters' files between scheduler, supervisor, workers and a store."""

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

from punica_runner.supervisor import Supervisor
from punica_serve.errors import ConfigError
from punica_serve.protocol import AdapterRef, AdaptersCached, Forget, GpuJoined, Warm
from supervised import FakeScheduler, config, running, start
from waits import until

FakeWorker = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "punica-serve"


@pytest.fixture
def store() -> Iterator[fsspec.AbstractFileSystem]:
    """A store in the memory of this process, in which the supervisor runs."""
    filesystem = fsspec.filesystem("memory")
    yield filesystem
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]


def stored(filesystem: fsspec.AbstractFileSystem, name: str) -> AdapterRef:
    """The part of an adapter that a supervisor knows: two files and their digest."""
    config, weights = b"{}", name.encode()
    filesystem.pipe({f"/store/{name}/adapter_config.json": config, f"/store/{name}/adapter_model.safetensors": weights})
    digests = hashlib.sha256(config).digest() + hashlib.sha256(weights).digest()
    return AdapterRef(hashlib.sha256(digests).hexdigest(), f"memory://store/{name}", len(weights), {"q_proj": 8})


def told(scheduler: FakeScheduler, gpu_uuid: str | None) -> list[AdaptersCached]:
    return [message for message in scheduler.all(AdaptersCached) if message.gpu_uuid == gpu_uuid]


async def test_workers_get_files_from_the_host_s_disk_and_the_scheduler_hears_of_it(
    scheduler: FakeScheduler,
    fake_worker: FakeWorker,
    store: fsspec.AbstractFileSystem,
    data_folder: Path,
) -> None:
    ref = stored(store, "a")
    folder = str(data_folder / "cache" / ref.digest)
    async with running(scheduler, fake_worker("CPU-a"), fake_worker("CPU-b")):
        await until(lambda: len(scheduler.all(GpuJoined)) == 2)
        scheduler.tell(Warm("CPU-a", ref), Warm("CPU-unknown", ref), Warm("CPU-b", ref))
        await until(lambda: told(scheduler, "CPU-a") and told(scheduler, "CPU-b"))
        assert told(scheduler, "CPU-a")[0].came == told(scheduler, "CPU-b")[0].came == (folder,)
        assert told(scheduler, None) == [AdaptersCached(None), AdaptersCached(None, (ref.digest,))]
        assert sorted(os.listdir(folder)) == ["adapter_config.json", "adapter_model.safetensors", "checksums"]
        assert scheduler.channel is not None
        await scheduler.channel.close("a new link is told all")
        await until(lambda: told(scheduler, None)[2:] == [AdaptersCached(None, (ref.digest,))])
        scheduler.tell(Forget(ref.digest))
        await until(lambda: told(scheduler, None)[-1].left == (ref.digest,))
        await until(lambda: told(scheduler, "CPU-a")[-1].left == told(scheduler, "CPU-b")[-1].left == (ref.digest,))
    assert ref.digest not in os.listdir(data_folder / "cache")


async def test_the_disks_adapters_outlive_the_runner(
    scheduler: FakeScheduler, fake_worker: FakeWorker, store: fsspec.AbstractFileSystem
) -> None:
    ref = stored(store, "a")
    async with running(scheduler, fake_worker("CPU-a")):
        await until(lambda: scheduler.all(GpuJoined))
        scheduler.tell(Warm("CPU-a", ref))
        await until(lambda: told(scheduler, "CPU-a"))
    scheduler.heard.clear()
    async with running(scheduler, fake_worker("CPU-a")):
        await until(lambda: told(scheduler, None))
    assert told(scheduler, None) == [AdaptersCached(None, (ref.digest,))]


async def test_a_failed_fetch_is_reported_to_the_worker(
    scheduler: FakeScheduler, fake_worker: FakeWorker, store: fsspec.AbstractFileSystem
) -> None:
    ref = stored(store, "a")
    store.rm("/store/a/adapter_model.safetensors")
    async with running(scheduler, fake_worker("CPU-a")):
        await until(lambda: scheduler.all(GpuJoined))
        scheduler.tell(Warm("CPU-a", ref))
        await until(lambda: told(scheduler, "CPU-a"))
        assert told(scheduler, "CPU-a")[0].left == ("adapter_rejected", "for good")
        scheduler.tell(start(1))
        await until(scheduler.pids)


def test_a_data_folder_that_can_t_be_had_is_a_config_error(data_folder: Path) -> None:
    data_folder.write_text("no folder")
    with pytest.raises(ConfigError, match=r"`data_folder`: adapters can't be stored in .*; set another folder"):
        Supervisor(config())
