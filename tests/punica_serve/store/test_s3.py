"""The store, the host's cache and the sources, against an S3 server that is a process of its own."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from punica_serve.adapters.folder import read_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.store_section import SourcesConfig, StoreConfig
from punica_serve.errors import AdapterRejected, Forbidden, StoreUnavailable
from punica_serve.protocol import AdapterRef
from punica_serve.store import ranged_read
from punica_serve.store.adapter_store import AdapterStore
from punica_serve.store.disk_cache import DiskCache
from punica_serve.store.ranged_read import RANGE_BYTES
from punica_serve.store.sources import Sources
from s3_server import BUCKET, S3Server, serve_s3
from tiny_check import check_for_tiny

#: Starting the server alone takes seconds.
pytestmark = pytest.mark.slow

ROOT = f"s3://{BUCKET}/store"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with serve_s3() as server:
        yield server


@pytest.fixture
def s3(server: S3Server) -> Iterator[S3Server]:
    """With nothing in it."""
    yield server
    filesystem = server.filesystem()
    for path in filesystem.find(BUCKET):
        filesystem.rm_file(path)


@pytest.fixture
def store(s3: S3Server) -> AdapterStore:
    return AdapterStore(ROOT, s3.options, timeout_s=60.0)


async def test_keeps_lists_and_deletes(
    store: AdapterStore, s3: S3Server, make_adapter: Callable[[int], AdapterRef]
) -> None:
    assert await store.digests() == frozenset()
    first, second = make_adapter(1), make_adapter(2)
    for ref in (first, second, first):
        assert not await store.exists(ref.digest) or ref is first
        assert await store.put(Path(ref.uri), ref.digest) == f"{ROOT}/{ref.digest}" == store.uri(ref.digest)
    assert await store.digests() == {first.digest, second.digest}
    for _ in range(2):
        await store.delete(first.digest)
    assert not await store.exists(first.digest)
    assert await store.digests() == {second.digest}
    assert len(s3.filesystem().find(BUCKET)) == 2


async def test_half_an_adapter_is_listed_but_not_there(store: AdapterStore, s3: S3Server, ref: AdapterRef) -> None:
    """Its writer died: readers do not find it in the store, and the cleanup does."""
    s3.filesystem().put_file(f"{ref.uri}/adapter_model.safetensors", f"{ROOT}/{ref.digest}/adapter_model.safetensors")
    assert not await store.exists(ref.digest)
    assert await store.digests() == {ref.digest}
    await store.put(Path(ref.uri), ref.digest)
    assert await store.exists(ref.digest)


@pytest.mark.parametrize("range_bytes", [1000, RANGE_BYTES])
async def test_a_host_downloads_what_is_stored(
    store: AdapterStore,
    s3: S3Server,
    tmp_path: Path,
    ref: AdapterRef,
    model: ModelConfig,
    monkeypatch: pytest.MonkeyPatch,
    range_bytes: int,
) -> None:
    monkeypatch.setattr(ranged_read, "RANGE_BYTES", range_bytes)
    stored = msgspec.structs.replace(ref, uri=await store.put(Path(ref.uri), ref.digest))
    shutil.rmtree(ref.uri)
    cache = DiskCache(tmp_path / "cache", 1 << 30, s3.options)
    folder = await cache.fetch(stored)
    assert read_adapter(folder, model).digest == ref.digest
    cache.release(ref.digest)
    await cache.forget(ref.digest)
    await store.delete(ref.digest)
    with pytest.raises(AdapterRejected, match="no longer in the store"):
        await cache.fetch(stored)
    await cache.close()


async def test_registers_from_a_bucket_with_its_credentials(
    s3: S3Server, tmp_path: Path, ref: AdapterRef, model: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.filesystem().put(ref.uri, f"s3://{BUCKET}/team/mine", recursive=True)
    monkeypatch.setenv("TEAM_SECRET", "test")
    credentials = {f"s3://{BUCKET}/team/": {**s3.options, "secret": {"env": "TEAM_SECRET"}}}
    sources = Sources(
        StoreConfig(sources=SourcesConfig(allowed=(f"s3://{BUCKET}/team/",), credentials=credentials)), check_for_tiny
    )
    await sources.fetch(f"s3://{BUCKET}/team/mine/", tmp_path, is_admin=False)
    assert read_adapter(tmp_path, model).digest == ref.digest
    with pytest.raises(AdapterRejected, match=r"no adapter_config\.json in s3"):
        await sources.fetch(f"s3://{BUCKET}/team/other", tmp_path, is_admin=False)
    with pytest.raises(Forbidden):
        await sources.fetch(f"s3://{BUCKET}/theirs", tmp_path, is_admin=False)


@pytest.mark.parametrize(
    ("uri", "with_key", "message"),
    [
        (
            "s3://no-such-bucket/a",
            True,
            r"no adapter_config\.json in s3://no-such-bucket/a, or the cluster may not see",
        ),
        ("s3://B_!/a", True, "there is no such folder"),
        (f"s3://{BUCKET}/a", False, "has no credentials for it"),
    ],
)
async def test_what_the_caller_can_mend_is_no_outage(
    s3: S3Server, tmp_path: Path, uri: str, with_key: bool, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    options = s3.options if with_key else {"client_kwargs": s3.options["client_kwargs"]}
    sources = Sources(StoreConfig(sources=SourcesConfig(credentials={"s3://": options})), check_for_tiny)
    with pytest.raises(AdapterRejected, match=message):
        await sources.fetch(uri, tmp_path, is_admin=True)


async def test_a_server_that_is_frozen_holds_nobody(s3: S3Server, ref: AdapterRef, tmp_path: Path) -> None:
    store = AdapterStore(ROOT, s3.options, timeout_s=0.5, transfer_timeout_s=0.5)
    cache = DiskCache(tmp_path / "cache", 1 << 30, s3.options, timeout_s=0.5)
    os.kill(s3.process.pid, signal.SIGSTOP)
    try:
        for call in (store.put(Path(ref.uri), ref.digest), store.digests(), cache.fetch(_stored(ref))):
            with pytest.raises(StoreUnavailable, match=r"longer than 0\.5 s"):
                await call
    finally:
        os.kill(s3.process.pid, signal.SIGCONT)
    await cache.close()


async def test_a_server_that_is_gone_is_unavailable(ref: AdapterRef, tmp_path: Path) -> None:
    options = S3Server.options_of(port=1)
    store = AdapterStore(ROOT, options, timeout_s=60.0, transfer_timeout_s=60.0)
    cache = DiskCache(tmp_path / "cache", 1 << 30, options, timeout_s=60.0)
    for call in (store.put(Path(ref.uri), ref.digest), store.digests(), cache.fetch(_stored(ref))):
        with pytest.raises(StoreUnavailable, match="is not available"):
            await call
    await cache.close()


def _stored(ref: AdapterRef) -> AdapterRef:
    return msgspec.structs.replace(ref, uri=f"{ROOT}/{ref.digest}")
