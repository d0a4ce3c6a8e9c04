import errno
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from punica_serve.cli import adapters
from stub_frontend import StubFrontend

Cli = Callable[..., Any]

ROMAN = {
    "full_name": "acme/roman",
    "version": 2,
    "ranks": {"q_proj": 8, "v_proj": 16},
    "num_bytes": 3 << 20,
    "digest": "ab" * 32,
    "registered_for": "numbers",
    "served": True,
    "pinned": True,
    "shadows": ["shared/roman"],
    "residency": {"gpus": ["GPU-1"], "hosts": ["GPU-1", "GPU-2"], "disks": []},
}
REMOVED = {"status": "deleted", "status_url": "/v1/adapter-deletions/x"}
REMOVING = {**REMOVED, "status": "deleting"}


def test_a_uri_is_the_clusters_to_fetch(cli: Cli, frontend: StubFrontend) -> None:
    frontend.answers = [(201, ROMAN), (200, {}), (200, {})]
    outcome = cli("adapters", "add", "roman", "s3://bucket/roman", "--pin", "--prefetch", "--url", frontend.url)
    hidden = "shared/roman has the same short name: for tenant acme, 'roman' now means this one\n"
    assert outcome == (0, f"acme/roman version 2: {'ab' * 32}\n", hidden)
    paths = ("/v1/adapters", "/v1/adapters/roman/pin", "/v1/adapters/roman/prefetch")
    assert frontend.requests == [f"POST {path}" for path in paths]
    assert json.loads(frontend.bodies[0]) == {"name": "roman", "uri": "s3://bucket/roman"}


def test_a_folder_is_sent(cli: Cli, frontend: StubFrontend, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_bytes(b"{config}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"{weights}")
    frontend.answers = [(201, ROMAN)]
    assert cli("adapters", "add", "acme/roman", str(tmp_path), "--url", frontend.url).exit_code == 0
    assert frontend.requests == ["POST /v1/adapters?name=acme%2Froman"]
    assert frontend.headers[0]["content-type"].startswith("multipart/form-data; boundary=")
    for part in (b"{config}", b"{weights}", b'filename="adapter_config.json"', b'filename="adapter_model.safetensors"'):
        assert part in frontend.bodies[0]


def test_an_archive_is_sent_as_it_is(cli: Cli, frontend: StubFrontend, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "roman.zip", "w") as archive:
        archive.writestr("adapter_config.json", "{}")
    frontend.answers = [(201, ROMAN)]
    assert cli("adapters", "add", "roman", str(tmp_path / "roman.zip"), "--url", frontend.url).exit_code == 0
    assert frontend.bodies == [(tmp_path / "roman.zip").read_bytes()]
    assert frontend.headers[0]["content-type"] == "application/zip"


def test_files_that_may_not_be_read_are_named(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("adapter_config.json", "adapter_model.safetensors", "roman.zip"):
        (tmp_path / name).touch()

    def refuse(*_: object) -> None:  # as to a user that is not the superuser
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    for source, file in ((tmp_path, "adapter_config.json"), (tmp_path / "roman.zip", "roman.zip")):
        outcome = cli("adapters", "add", "roman", str(source))
        assert outcome == (2, "", f"punica-serve: {tmp_path / file} can't be read: Permission denied\n")


def test_a_source_that_is_none(cli: Cli, tmp_path: Path) -> None:
    for source in (str(tmp_path / "nowhere"), "~no-such-user/x", "x" * 5000, ""):
        outcome = cli("adapters", "add", "roman", source)
        message = f"{source!r} does not exist here, or you may not see it; give a URI, a PEFT folder or a .zip"
        assert outcome.exit_code == 2 and message in outcome.stderr
    outcome = cli("adapters", "add", "roman", __file__)
    assert outcome.exit_code == 2 and f"{__file__!r} is not a URI, a PEFT folder or a .zip" in outcome.stderr
    outcome = cli("adapters", "add", "roman", str(tmp_path))
    assert outcome.exit_code == 2 and "adapter_config.json does not exist, or you may not see it" in outcome.stderr


def test_a_folder_with_weights_in_several_files(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model-00001-of-00002.safetensors").write_bytes(b"")
    outcome = cli("adapters", "add", "roman", str(tmp_path))
    assert outcome.exit_code == 1 and "save_file them together as adapter_model.safetensors" in outcome.stderr


def test_the_key_comes_from_the_environment(cli: Cli, frontend: StubFrontend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNICA_API_KEY", "ps-1-secret")
    frontend.answers = [(200, {}), (200, {})]
    cli("adapters", "pin", "roman", "--url", frontend.url)
    cli("adapters", "unpin", "roman", "--url", frontend.url, "--key", "ps-2-secret")
    assert [headers["authorization"] for headers in frontend.headers] == ["Bearer ps-1-secret", "Bearer ps-2-secret"]


def test_the_frontends_address_comes_from_the_environment(
    cli: Cli, frontend: StubFrontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUNICA_URL", frontend.url)
    frontend.answers = [(200, {})]
    assert cli("adapters", "pin", "roman").exit_code == 0
    assert len(frontend.requests) == 1


def test_the_list_is_read_page_by_page(cli: Cli, frontend: StubFrontend) -> None:
    unknown = {**ROMAN, "full_name": "acme/greek", "residency": None, "pinned": False, "served": False}
    frontend.answers = [(200, {"data": [ROMAN], "has_more": True}), (200, {"data": [unknown], "has_more": False})]
    outcome = cli("adapters", "list", "--url", frontend.url)
    roman, greek = (line.split() for line in outcome.stdout.splitlines() if "acme/" in line)
    assert roman == ["acme/roman", "2", "16", "3.0", "1", "2", "0", "pinned"]
    assert greek == ["acme/greek", "2", "16", "3.0", "?", "?", "?", "for", "numbers"]
    assert frontend.requests == ["GET /v1/adapters?limit=1000", "GET /v1/adapters?limit=1000&after=acme%2Froman"]


def test_show_prints_json(cli: Cli, frontend: StubFrontend) -> None:
    frontend.answers = [(200, ROMAN)]
    assert json.loads(cli("adapters", "show", "roman", "--url", frontend.url).stdout) == ROMAN


def test_remove_waits_for_the_end(cli: Cli, frontend: StubFrontend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "POLL_S", 0.0)
    frontend.answers = [
        (202, {**REMOVED, "status": "deleting"}),
        (200, {**REMOVED, "status": "deleting"}),
        (200, REMOVED),
    ]
    outcome = cli("adapters", "remove", "roman", "--url", frontend.url)
    assert outcome == (0, "roman is removed everywhere\n", "")
    assert frontend.requests == ["DELETE /v1/adapters/roman?wait_s=5.0", *["GET /v1/adapter-deletions/x"] * 2]


def test_remove_says_who_else_has_the_bytes(cli: Cli, frontend: StubFrontend) -> None:
    frontend.answers = [(200, {**REMOVED, "shared_with": ["shared/hex", "mine"]})]
    outcome = cli("adapters", "remove", "roman", "--url", frontend.url)
    assert outcome.exit_code == 0 and "its bytes stay" in outcome.stdout and "shared/hex, mine" in outcome.stdout


def test_remove_may_leave_the_rest_to_the_cluster(cli: Cli, frontend: StubFrontend) -> None:
    frontend.answers = [(202, REMOVING)]
    outcome = cli("adapters", "remove", "roman", "--wait-s", "0", "--url", frontend.url)
    assert outcome.exit_code == 0 and "see /v1/adapter-deletions/x" in outcome.stdout


def test_only_the_gpus_that_were_given_are_named(cli: Cli, frontend: StubFrontend) -> None:
    frontend.answers = [(202, {}), (202, {})]
    cli("adapters", "prefetch", "roman", "--url", frontend.url)
    cli("adapters", "prefetch", "roman", "--gpu", "host/0", "--gpu", "GPU-2", "--url", frontend.url)
    assert [json.loads(body) for body in frontend.bodies] == [{}, {"gpus": ["host/0", "GPU-2"]}]
    outcome = cli("adapters", "prefetch", "roman", "--gpu", "\udcff", "--url", frontend.url)
    assert outcome.exit_code == 2 and "an argument is not valid UTF-8" in outcome.stderr


def test_a_refusal_is_one_line(cli: Cli, frontend: StubFrontend) -> None:
    frontend.answers = [(404, {"error": {"message": "there is no adapter 'x'"}}), (502, ["bad gateway"])]
    assert cli("adapters", "show", "x", "--url", frontend.url) == (1, "", "punica-serve: there is no adapter 'x'\n")
    refused = cli("adapters", "show", "x", "--url", frontend.url)
    assert refused.stderr.endswith("answered 502, but not as a frontend does; set `--url` to a frontend's address\n")


def test_what_is_no_name_is_sent_whole(cli: Cli, frontend: StubFrontend) -> None:
    frontend.answers = [(404, {"error": {"message": "there is no adapter so"}})] * 2
    cli("adapters", "pin", "roman?x", "--url", frontend.url)
    cli("adapters", "show", "acme/ro man#", "--url", frontend.url)
    assert frontend.requests == ["POST /v1/adapters/roman%3Fx/pin", "GET /v1/adapters/acme/ro%20man%23"]


@pytest.mark.parametrize("answer", [["hello"], "hello", None])
def test_something_else_than_a_frontend_is_told(cli: Cli, frontend: StubFrontend, answer: Any) -> None:
    frontend.answers = [(200, answer)]
    outcome = cli("adapters", "list", "--url", frontend.url)
    assert outcome.exit_code == 2 and outcome.stderr.count("\n") == 1
    assert (
        "/v1/adapters?limit=1000 does not answer like a frontend; give a frontend's address with `--url`"
        in outcome.stderr
    )


@pytest.mark.parametrize("key", ["schlüssel", "two\nlines"])
def test_a_key_that_is_none_is_refused_and_not_shown(cli: Cli, frontend: StubFrontend, key: str) -> None:
    outcome = cli("adapters", "list", "--url", frontend.url, "--key", key)
    assert outcome.exit_code == 2 and not frontend.requests
    assert outcome.stderr == (
        "punica-serve: the API key (`--key`, PUNICA_API_KEY) holds a character that keys never have; check how it was"
        " copied\n"
    )


def test_a_key_that_is_lacking_is_asked_for(cli: Cli, frontend: StubFrontend) -> None:
    frontend.answers = [(401, {"error": {"message": "there is no key"}})]
    outcome = cli("adapters", "list", "--url", frontend.url)
    assert outcome.exit_code != 0 and "set `--key` or PUNICA_API_KEY" in outcome.stderr


def test_no_frontend_and_no_url(cli: Cli, unused_port: int) -> None:
    outcome = cli("adapters", "list", "--url", f"http://127.0.0.1:{unused_port}")
    assert outcome.exit_code == 2
    assert f"no frontend answers at http://127.0.0.1:{unused_port} (Connection refused); " in outcome.stderr
    outcome = cli("adapters", "list", "--url", "localhost:8000")
    assert outcome.exit_code == 2 and "is not of the form http://HOST:PORT" in outcome.stderr
