"""What `up` refuses before it starts anything: one line, exit code 2. tests/e2e starts it for good."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from punica_serve.cli import up
from punica_serve.process import LogLevel

Cli = Callable[..., tuple[int, str, str]]
WriteConfig = Callable[..., Path]


def assert_refused(outcome: tuple[int, str, str], message: str) -> None:
    exit_code, stdout, stderr = outcome
    assert (exit_code, stdout) == (2, "")
    assert stderr.startswith("punica-serve: ")
    assert message in stderr
    assert stderr.count("\n") == 1


def test_a_missing_config_file(cli: Cli, tmp_path: Path) -> None:
    assert_refused(cli("up", "--config", str(tmp_path / "none.yaml")), f"{tmp_path}/none.yaml can't be read: No such")


def test_a_config_file_that_is_not_yaml(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("engine: [")
    assert_refused(cli("up", "--config", str(path)), f"{path} is not YAML")


def test_a_config_key_that_does_not_exist(cli: Cli, write_config: WriteConfig) -> None:
    assert_refused(cli("up", "--config", str(write_config(runner={"gpus": 2}))), "`runner.gpus`")


def test_a_missing_model_folder(cli: Cli, write_config: WriteConfig, tmp_path: Path) -> None:
    config = write_config(engine={"model": "nowhere"})
    assert_refused(cli("up", "--config", str(config)), f"model folder {tmp_path}/nowhere does not exist")


def test_a_model_folder_without_a_tokenizer(cli: Cli, write_config: WriteConfig, model_folder: Path) -> None:
    (model_folder / "tokenizer.json").unlink()
    assert_refused(cli("up", "--config", str(write_config())), f"{model_folder}/tokenizer.json can't be read")


def test_a_frontend_port_in_use(cli: Cli, write_config: WriteConfig, taken_port: int) -> None:
    message = f"127.0.0.1:{taken_port}: the port is in use; stop what listens there, or change --port"
    assert_refused(cli("up", "--config", str(write_config(frontend={"port": taken_port}))), message)
    assert_refused(cli("up", "--config", str(write_config()), "--port", str(taken_port)), message)


def test_a_scheduler_port_in_use(cli: Cli, write_config: WriteConfig, taken_port: int) -> None:
    outcome = cli("up", "--config", str(write_config(scheduler={"port": taken_port})))
    assert_refused(outcome, f"127.0.0.1:{taken_port}: the port is in use")


CLUSTER = up.Cluster(
    config=Path("/etc/punica.yaml"),
    log_level=LogLevel.INFO,
    scheduler_host="0.0.0.0",
    scheduler_port=8100,
    host="0.0.0.0",
    port=8000,
)


def test_every_process_dials_the_one_scheduler() -> None:
    assert CLUSTER.command("scheduler")[-2:] == ["--port", "8100"]
    for name in ("runner", "frontend"):
        command = CLUSTER.command(name)
        assert command[command.index("--scheduler-url") + 1] == "ws://127.0.0.1:8100"
    assert CLUSTER.command("frontend")[-4:] == ["--host", "0.0.0.0", "--port", "8000"]


@asynccontextmanager
async def frontend_answering(*answers: httpx.Response | Exception) -> AsyncIterator[httpx.AsyncClient]:
    """A client whose calls get these answers, in this order."""
    remaining = list(answers)

    def answer(_: httpx.Request) -> httpx.Response:
        if isinstance(next_answer := remaining.pop(0), Exception):
            raise next_answer
        return next_answer

    async with httpx.AsyncClient(base_url="http://127.0.0.1:8000", transport=httpx.MockTransport(answer)) as client:
        yield client
    assert not remaining


READY = httpx.Response(200)
MODELS = httpx.Response(200, json={"data": [{"id": name} for name in ("numbers", "roman")]})


async def test_what_it_waits_for_is_a_line_each_where_there_is_no_terminal() -> None:
    out = StringIO()
    console = Console(file=out, force_terminal=False)
    no_gpu = httpx.Response(503, json={"error": {"message": "no [/] GPU has joined"}})
    async with frontend_answering(httpx.ConnectError("refused"), no_gpu, no_gpu, READY, MODELS) as client:
        assert await up._until_ready(client, console) == ["numbers", "roman"]
    assert out.getvalue() == "waiting for the frontend\nno [/] GPU has joined\n"


async def test_a_frontend_that_dies_once_it_was_ready_is_waited_for_again() -> None:
    out = StringIO()
    async with frontend_answering(READY, httpx.ReadError("gone"), READY, MODELS) as client:
        assert await up._until_ready(client, Console(file=out)) == ["numbers", "roman"]
    assert out.getvalue() == "waiting for the frontend\n"


@pytest.mark.parametrize(("adapters", "lora_id"), [(["roman", "x[/b]"], '"roman"'), ([], "null")])
def test_the_banner_gives_a_line_to_try(adapters: list[str], lora_id: str) -> None:
    out = StringIO()
    up._print_banner("http://127.0.0.1:8000", ["numbers", *adapters], Console(file=out, width=20))
    assert (
        "  curl -s http://127.0.0.1:8000/v1/generate -H 'content-type: application/json'"
        f""" -d '{{"prompt": "42", "lora_id": {lora_id}}}'\n"""
    ) in out.getvalue()
    assert "http://127.0.0.1:8000/docs" in out.getvalue()
    assert (", ".join(adapters) or "none") in out.getvalue()


async def test_it_waits_until_the_scheduler_listens() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server, asyncio.timeout(10):
        await up._until_listening(*server.sockets[0].getsockname())
