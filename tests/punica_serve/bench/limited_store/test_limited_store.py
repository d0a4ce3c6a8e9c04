"""A store whose adapters come by way of a process of their own, and the ends of that process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from punica_serve.adapters.folder import WEIGHTS_NAME
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.bench.limited_store import adapter_fetcher, limited_store
from punica_serve.bench.limited_store.limited_store import LimitedStore
from punica_serve.bench.limited_store.store_link import FILES
from punica_serve.bench.random_adapters import write_folders
from punica_serve.errors import AdapterRejected, ConfigError, StoreUnavailable
from punica_serve.protocol import AdapterRef

_TIMEOUT_S = 60.0
_CACHE_BYTES = 1 << 30


@pytest.fixture
def refs(tmp_path: Path, tiny_model: ModelConfig) -> list[AdapterRef]:
    return write_folders(tmp_path / FILES, tiny_model, 3, 4, torch.device("cpu"), lambda: None)


@pytest.fixture
def store(tmp_path: Path, refs: list[AdapterRef]) -> Iterator[LimitedStore]:
    with limited_store.limited_store("HTTP", 1e9, tmp_path, tmp_path / "cache", _CACHE_BYTES) as opened:
        yield opened


def test_several_adapters_come_at_once(store: LimitedStore, refs: list[AdapterRef]) -> None:
    for ref, fetched in [(ref, store.fetch(store.remote(ref))) for ref in refs]:
        folder = fetched.result(_TIMEOUT_S)
        assert folder != Path(ref.uri)
        assert (folder / WEIGHTS_NAME).read_bytes() == (Path(ref.uri) / WEIGHTS_NAME).read_bytes()


def test_an_adapter_that_is_not_there_is_refused_and_others_still_come(
    store: LimitedStore, refs: list[AdapterRef]
) -> None:
    missing = replace(store.remote(refs[0]), uri=f"{store.remote(refs[0]).uri}-missing", digest="0" * 64)
    with pytest.raises(AdapterRejected, match="no longer in the store"):
        store.fetch(missing).result(_TIMEOUT_S)
    store.fetch(store.remote(refs[1])).result(_TIMEOUT_S)


def test_the_rate_is_the_median_of_single_files(store: LimitedStore, refs: list[AdapterRef]) -> None:
    store.measure_rate(refs)
    assert len(store.rates) == 3 and store.rate == sorted(store.rates)[1]


def test_a_process_that_has_ended_fails_all_fetches(
    tmp_path: Path, refs: list[AdapterRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "short_process.py").write_text("import sys; sys.stdin.readline()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(adapter_fetcher, "_MODULE", "short_process")
    with adapter_fetcher.adapter_fetcher(tmp_path / "cache", _CACHE_BYTES, {}) as fetcher:
        for ref in refs:  # the first ends it, and the last may find it gone
            with pytest.raises(StoreUnavailable, match="has ended"):
                fetcher.fetch(ref).result(_TIMEOUT_S)


def test_a_download_under_way_holds_nobody(tmp_path: Path, refs: list[AdapterRef]) -> None:
    with limited_store.limited_store("HTTP", 1e3, tmp_path, tmp_path / "cache", _CACHE_BYTES) as store:
        fetched = store.fetch(store.remote(refs[0]))
    with pytest.raises(StoreUnavailable, match="has ended"):
        fetched.result(0)


def test_a_protocol_without_its_packages_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_store, "is_spoken", lambda _: False)
    opening = limited_store.limited_store("S3", 1e9, tmp_path, tmp_path / "cache", _CACHE_BYTES)
    with pytest.raises(ConfigError, match="install the extra `s3`"), opening:
        pass
