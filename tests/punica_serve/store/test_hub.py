"""Sources at hf://, against a server that answers as Hugging Face's hub does."""

import json
from pathlib import Path

import pytest

from file_server import FileServer
from punica_serve.adapters.folder import read_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.store_section import SourcesConfig, StoreConfig
from punica_serve.errors import AdapterRejected, StoreUnavailable
from punica_serve.protocol import AdapterRef
from punica_serve.store.sources import Sources
from tiny_check import check_for_tiny

pytest.importorskip("huggingface_hub", reason="needs the extra hf")

REPOSITORY = "/api/models/org/repo"


@pytest.fixture
def hub(http_server: FileServer, ref: AdapterRef) -> FileServer:
    """With the adapter in the folder `sub` of org/repo."""
    folder = Path(ref.uri)
    http_server.add_adapter(ref, "/org/repo/resolve/main/sub")
    listing = [
        {"type": "file", "path": f"sub/{file.name}", "size": file.stat().st_size, "oid": "0" * 40}
        for file in folder.iterdir()
    ]
    for path, answer in {
        REPOSITORY: {"id": "org/repo", "sha": "0" * 40},
        f"{REPOSITORY}/revision/main": {"id": "org/repo", "sha": "0" * 40},
        f"{REPOSITORY}/tree/main/sub": listing,
    }.items():
        http_server.files[path] = json.dumps(answer).encode()
    http_server.headers_of_404 = {"X-Error-Code": "EntryNotFound"}
    return http_server


def sources(hub: FileServer, **options: str) -> Sources:
    credentials = {"hf://": {"endpoint": hub.url, **options}}
    return Sources(StoreConfig(sources=SourcesConfig(credentials=credentials)), check_for_tiny)


@pytest.mark.parametrize("uri", ["hf://org/repo/sub", "hf://org/repo@main/sub/"])
async def test_fetches_from_the_hub_without_the_operators_token(
    hub: FileServer, tmp_path: Path, ref: AdapterRef, model: ModelConfig, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_operator")
    fetched = tmp_path / "fetched"
    fetched.mkdir()
    await sources(hub).fetch(uri, fetched, is_admin=False)
    assert read_adapter(fetched, model).digest == ref.digest
    assert not any("authorization" in headers for headers in hub.headers_of.values())


async def test_a_token_of_the_configuration_is_used(hub: FileServer, tmp_path: Path) -> None:
    fetched = tmp_path / "fetched"
    fetched.mkdir()
    await sources(hub, token="hf_of_the_tenant").fetch("hf://org/repo/sub", fetched, is_admin=False)
    assert hub.headers_of[REPOSITORY]["authorization"] == "Bearer hf_of_the_tenant"


@pytest.mark.parametrize(
    ("uri", "code"), [("hf://org/repo/other", "EntryNotFound"), ("hf://org/private/x", "RepoNotFound")]
)
async def test_what_is_not_there_is_said(hub: FileServer, tmp_path: Path, uri: str, code: str) -> None:
    hub.headers_of_404 = {"X-Error-Code": code}
    with pytest.raises(AdapterRejected, match=r"no adapter_config\.json in hf://"):
        await sources(hub).fetch(uri, tmp_path, is_admin=False)


@pytest.mark.parametrize("uri", ["hf://org", "hf://org/re!!po/x"])
async def test_what_is_no_folder_of_a_repository_is_refused(hub: FileServer, tmp_path: Path, uri: str) -> None:
    with pytest.raises(AdapterRejected, match=f"{uri} can't be read: there is no such folder"):
        await sources(hub).fetch(uri, tmp_path, is_admin=False)


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [(403, AdapterRejected, "may not read it; give it access"), (500, StoreUnavailable, "is not available")],
)
async def test_a_hub_that_refuses_is_no_hub_that_is_down(
    hub: FileServer, tmp_path: Path, status: int, kind: type[Exception], message: str
) -> None:
    hub.statuses = {path: status for path in hub.files if path.startswith("/api/")}
    with pytest.raises(kind, match=message):
        await sources(hub).fetch("hf://org/repo/sub", tmp_path, is_admin=False)
