"""An adapter is its tenant's: where its files lie, no other user of the host may read them, whatever the umask."""

import os
import tarfile
from io import BytesIO
from pathlib import Path

import msgspec
import pytest

from file_modes import others_may
from file_server import FileServer
from punica_serve.protocol import AdapterRef
from punica_serve.store.adapter_store import AdapterStore
from punica_serve.store.disk_cache import DiskCache
from punica_serve.store.file_sink import FileSink
from punica_serve.store.sinks import ArchiveSink

pytestmark = pytest.mark.usefixtures("any_umask")


@pytest.mark.parametrize("is_damaged", [False, True])
async def test_in_the_store(tmp_path: Path, ref: AdapterRef, is_damaged: bool) -> None:
    store = AdapterStore(str(tmp_path / "data/store"))
    uri = Path(await store.put(Path(ref.uri), ref.digest))
    if is_damaged:
        (uri / "adapter_model.safetensors").write_bytes(b"")
        await store.put(Path(ref.uri), ref.digest)
    assert len(os.listdir(uri)) == 2 and not others_may(tmp_path / "data")


async def test_in_a_hosts_cache(tmp_path: Path, ref: AdapterRef, http_server: FileServer) -> None:
    cache = DiskCache(tmp_path / "data/cache", 1 << 30)
    served = msgspec.structs.replace(ref, uri=http_server.add_adapter(ref, f"/store/{ref.digest}"))
    folder = await cache.fetch(served)
    assert len(os.listdir(folder)) == 3 and not others_may(tmp_path / "data")
    await cache.close()


def test_as_an_archive_on_its_way_in(tmp_path: Path, ref: AdapterRef) -> None:
    body, folder = BytesIO(), tmp_path / "staged"
    folder.mkdir(mode=0o700)
    with tarfile.open(fileobj=body, mode="w") as archive:
        archive.add(ref.uri, arcname=".")
    sink = ArchiveSink(folder, 1 << 20)
    sink.write(body.getvalue())
    assert not others_may(folder), "the archive"
    sink.finish()
    assert len(os.listdir(folder)) == 2 and not others_may(folder)


def test_as_a_file_on_its_way_in(tmp_path: Path) -> None:
    folder = tmp_path / "staged"
    folder.mkdir(mode=0o700)
    sink = FileSink(folder / "adapter_config.json", 1 << 20)
    sink.write(b"{}")
    sink.finish()
    assert not others_may(folder)
