import asyncio
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from fsspec.registry import _registry as fsspec_registry

from file_server import FileServer
from punica_serve.adapters.folder import read_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.store_section import SourcesConfig, StoreConfig
from punica_serve.errors import AdapterRejected, Forbidden, StoreUnavailable, TooLarge
from punica_serve.protocol import AdapterRef
from punica_serve.store import web_source
from punica_serve.store.pace import MinRate
from punica_serve.store.sources import Sources
from tiny_check import check_for_tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "fetched"
    folder.mkdir()
    return folder


def sources(max_adapter_bytes: int = 1 << 20, **fields: Any) -> Sources:
    return Sources(StoreConfig(max_adapter_bytes=max_adapter_bytes, sources=SourcesConfig(**fields)), check_for_tiny)


def of_server(server: FileServer, max_adapter_bytes: int = 1 << 20, **fields: Any) -> Sources:
    """For tenants who may use this server, though its address is private."""
    allowed = {"allowed": (server.url,), "private_networks": ("127.0.0.1/32",)}
    return sources(max_adapter_bytes, **{**allowed, **fields})


async def test_fetches_only_an_adapters_files(
    folder: Path, ref: AdapterRef, http_server: FileServer, model: ModelConfig
) -> None:
    (Path(ref.uri) / "README.md").write_text("not for the cluster")
    (Path(ref.uri) / "tokenizer_config.json").write_text("{}")
    await of_server(http_server).fetch(http_server.add_adapter(ref, "/a"), folder, is_admin=False)
    assert sorted(os.listdir(folder)) == ["adapter_config.json", "adapter_model.safetensors", "tokenizer_config.json"]
    assert read_adapter(folder, model).digest == ref.digest


async def test_follows_redirects_without_handing_on_credentials(
    folder: Path, ref: AdapterRef, http_server: FileServer
) -> None:
    http_server.add_adapter(ref, "/real")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        http_server.redirects[f"/a/{name}"] = f"http://localhost:{http_server.port}/real/{name}"
    credentials = {http_server.url: {"headers": {"Authorization": "Bearer secret"}}}
    fetched = of_server(http_server, credentials=credentials)
    await fetched.fetch(f"{http_server.url}/a", folder, is_admin=False)
    assert http_server.headers_of["/a/adapter_config.json"]["authorization"] == "Bearer secret"
    assert "authorization" not in http_server.headers_of["/real/adapter_config.json"]


@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.2:{port}/real/adapter_config.json",
        "http://[::1]:{port}/real/adapter_config.json",
        "http://169.254.169.254/latest/meta-data",
        "http://10.0.0.1/x",
        "//127.0.0.2:{port}/real/adapter_config.json",
    ],
)
async def test_a_redirect_to_a_private_address_is_refused(
    folder: Path, ref: AdapterRef, http_server: FileServer, target: str
) -> None:
    http_server.add_adapter(ref, "/real")
    http_server.redirects["/a/adapter_config.json"] = target.format(port=http_server.port)
    with pytest.raises(Forbidden, match="has no public address"):
        await of_server(http_server).fetch(f"{http_server.url}/a", folder, is_admin=False)
    assert not http_server.num_gets["/real/adapter_config.json"]


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/"])
async def test_a_redirect_to_another_scheme_is_refused(folder: Path, http_server: FileServer, target: str) -> None:
    http_server.redirects["/a/adapter_config.json"] = target
    with pytest.raises(AdapterRejected, match="not https"):
        await of_server(http_server).fetch(f"{http_server.url}/a", folder, is_admin=False)


async def test_an_address_in_disguise_is_refused(folder: Path, http_server: FileServer) -> None:
    for host in ("2130706433", "0x7f000001", "127.1", "0177.0.0.1", "127.0.0.1.", "0"):
        with pytest.raises(Forbidden, match="has no public address"):
            await sources(allowed=("http://",)).fetch(f"http://{host}:{http_server.port}/a", folder, is_admin=False)
    assert not http_server.num_gets


async def test_redirects_have_an_end(folder: Path, http_server: FileServer) -> None:
    http_server.redirects["/a/adapter_config.json"] = "/a/adapter_config.json"
    with pytest.raises(AdapterRejected, match="more than 5 times"):
        await of_server(http_server).fetch(f"{http_server.url}/a", folder, is_admin=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "no.such.invalid"])
async def test_tenants_reach_no_private_address(folder: Path, http_server: FileServer, host: str) -> None:
    """The same is said whether or not there is such a host: nobody maps the network so."""
    with pytest.raises(Forbidden, match="has no public address"):
        await sources(allowed=("http://",)).fetch(f"http://{host}:{http_server.port}/a", folder, is_admin=False)
    assert not http_server.num_gets


async def test_admins_hear_that_there_is_no_such_host(folder: Path) -> None:
    """Where no name server answers, it may be that there is one."""
    with pytest.raises((AdapterRejected, StoreUnavailable), match=r"no host called|is not available"):
        await sources().fetch("https://no.such.invalid/a", folder, is_admin=True)


async def test_admins_reach_every_address(folder: Path, ref: AdapterRef, http_server: FileServer) -> None:
    http_server.add_adapter(ref, "/a")
    await sources().fetch(f"http://localhost:{http_server.port}/a", folder, is_admin=True)
    assert len(os.listdir(folder)) == 2


async def test_what_is_missing_is_said(folder: Path, ref: AdapterRef, http_server: FileServer) -> None:
    http_server.add_adapter(ref, "/a")
    del http_server.files["/a/adapter_model.safetensors"]
    with pytest.raises(AdapterRejected, match=r"no adapter_model\.safetensors in http") as caught:
        await of_server(http_server).fetch(f"{http_server.url}/a", folder, is_admin=False)
    assert caught.value.param == "uri"


async def test_a_file_beyond_the_limit_is_given_up(folder: Path, ref: AdapterRef, http_server: FileServer) -> None:
    uri = http_server.add_adapter(ref, "/a")
    with pytest.raises(TooLarge, match="larger than 1000 bytes"):
        await of_server(http_server, max_adapter_bytes=1000).fetch(uri, folder, is_admin=False)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(code, AdapterRejected) for code in (400, 401, 403, 404, 410)]
    + [(code, StoreUnavailable) for code in (408, 429, 500, 502, 503)],
)
async def test_a_server_that_refuses_is_no_server_that_is_down(
    folder: Path, ref: AdapterRef, http_server: FileServer, status: int, kind: type[Exception]
) -> None:
    uri = http_server.add_adapter(ref, "/a")
    http_server.statuses["/a/adapter_config.json"] = status
    with pytest.raises(kind, match=r"answers with \d+ for|no adapter_config\.json in"):
        await of_server(http_server).fetch(uri, folder, is_admin=False)


async def test_a_server_without_tls_is_named(folder: Path, http_server: FileServer) -> None:
    with pytest.raises(AdapterRejected, match="does not speak TLS; or upload"):
        await sources().fetch(f"https://127.0.0.1:{http_server.port}/a", folder, is_admin=True)


async def test_a_cluster_that_is_not_set_up_for_a_source(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"https://host.example/": {"headers": {"Authorization": {"env": "NO_SUCH_VARIABLE"}}}}
    with pytest.raises(AdapterRejected, match="its operator's log says what is missing"):
        await sources(credentials=missing).fetch("https://host.example/a", folder, is_admin=True)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(fsspec_registry, "s3", raising=False)
    with pytest.raises(AdapterRejected, match=r"not set up for it.*or upload the adapter"):
        await sources().fetch("s3://bucket/a", folder, is_admin=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_an_address_that_refuses_connections_is_the_callers_mistake(folder: Path, host: str) -> None:
    message = rf"http://{host}:1/a/adapter_config\.json can't be read: .* check its host and port.*; or upload"
    with pytest.raises(AdapterRejected, match=message) as caught:
        await sources().fetch(f"http://{host}:1/a", folder, is_admin=True)
    assert caught.value.param == "uri"


async def test_a_server_that_answered_is_down_where_it_refuses_later(
    folder: Path, ref: AdapterRef, http_server: FileServer
) -> None:
    """The caller's address is right, so a retry may help: here it is the server behind a redirect."""
    uri = http_server.add_adapter(ref, "/a")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    http_server.redirects["/a/adapter_model.safetensors"] = f"http://127.0.0.1:{port}/b"
    with pytest.raises(StoreUnavailable, match="has stopped answering; try again later"):
        await sources().fetch(uri, folder, is_admin=True)


async def test_a_source_that_is_down_or_slow(folder: Path, ref: AdapterRef, http_server: FileServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}/a"
        closing = asyncio.get_running_loop().run_in_executor(None, lambda: silent.accept()[0].close())
        with pytest.raises(StoreUnavailable, match=r"the source is not available; try again later"):
            await sources().fetch(uri, folder, is_admin=True)
        await closing
    uri = http_server.add_adapter(ref, "/a")
    http_server.may_answer.clear()
    with pytest.raises(StoreUnavailable, match=r"longer than 0.3 s"):
        await of_server(http_server, timeout_s=0.3).fetch(uri, folder, is_admin=False)


async def test_local_folders_are_for_admins(folder: Path, ref: AdapterRef, model: ModelConfig) -> None:
    with pytest.raises(Forbidden, match="may be registered from"):
        await sources().fetch(ref.uri, folder, is_admin=False)
    assert not os.listdir(folder)
    await sources().fetch(ref.uri, folder, is_admin=True)
    assert read_adapter(folder, model).digest == ref.digest


async def test_or_for_tenants_where_an_admin_allows_one(tmp_path: Path, folder: Path, ref: AdapterRef) -> None:
    allowed = sources(allowed=(f"file://{ref.uri}",))
    await allowed.fetch(ref.uri, folder, is_admin=False)
    (tmp_path / "secret.json").write_text("{}")
    config = Path(ref.uri) / "adapter_config.json"
    config.unlink()
    config.symlink_to(tmp_path / "secret.json")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(Forbidden, match="leads out"):
        await allowed.fetch(ref.uri, empty, is_admin=False)


@pytest.mark.timeout(60)
async def test_a_pipe_in_a_files_place_is_refused_and_nobody_waits_for_it(tmp_path: Path, folder: Path) -> None:
    os.mkfifo(tmp_path / "adapter_config.json")
    with pytest.raises(AdapterRejected, match=r"can't be read: adapter_config\.json is not a regular file; or upload"):
        await sources().fetch(f"file://{tmp_path}", folder, is_admin=True)


async def test_a_local_folder_that_is_not_there(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(AdapterRejected, match=r"no adapter_config\.json in file://"):
        await sources().fetch(str(tmp_path / "missing"), folder, is_admin=True)


@pytest.mark.parametrize("uri", ["{folder}/adapter_config.json", "/" + "long" * 100])
async def test_what_is_no_folder(folder: Path, ref: AdapterRef, uri: str) -> None:
    with pytest.raises(AdapterRejected, match="there is no such folder"):
        await sources().fetch(uri.format(folder=ref.uri), folder, is_admin=True)


async def test_a_bucket_that_the_cluster_may_not_read(folder: Path, http_server: FileServer) -> None:
    pytest.importorskip("s3fs", reason="needs the extra s3")
    http_server.statuses = {f"/bucket/a/{name}": 403 for name in ("adapter_config.json", "adapter_model.safetensors")}
    options = {"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": http_server.url}}
    with pytest.raises(AdapterRejected, match="s3://bucket/a can't be read: this cluster may not read it; give it"):
        await sources(credentials={"s3://bucket/": options}).fetch("s3://bucket/a", folder, is_admin=True)


async def test_a_source_that_trickles_is_given_up(
    folder: Path, ref: AdapterRef, http_server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_source, "_MIN_RATE", MinRate(1 << 10, 0.2))
    url = http_server.add_adapter(ref, "/a")
    http_server.pauses_s["/a/adapter_model.safetensors"] = 0.02
    with pytest.raises(
        StoreUnavailable, match=r"adapter_(config\.json|model\.safetensors) more slowly than 1 KiB/s over 0\.2 s"
    ):
        await of_server(http_server).fetch(url, folder, is_admin=False)
    assert http_server.num_gets["/a/adapter_model.safetensors"], "both are fetched at once"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            {"r": 512},
            "r",
            "has rank 512 in all its modules, and `engine.max_lora_rank` is 128; 256 is the most: train a lower one",
        ),
        ({"target_modules": ["c_attn"]}, "target_modules", "`c_attn`, which the base model does not have"),
        ({"use_dora": True}, "use_dora", "`use_dora` is True, which can't be applied"),
    ],
)
@pytest.mark.parametrize("is_web", [True, False])
async def test_weights_of_a_configuration_that_is_refused_are_not_fetched(
    folder: Path,
    ref: AdapterRef,
    http_server: FileServer,
    is_web: bool,
    fields: dict[str, Any],
    param: str,
    message: str,
) -> None:
    config = Path(ref.uri) / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **fields}))
    uri = http_server.add_adapter(ref, "/a") if is_web else f"file://{ref.uri}"
    with pytest.raises(AdapterRejected, match=message) as caught:
        await of_server(http_server).fetch(uri, folder, is_admin=True)
    assert caught.value.param == param
    assert os.listdir(folder) == ["adapter_config.json"]
    assert not http_server.num_gets["/a/adapter_model.safetensors"]
