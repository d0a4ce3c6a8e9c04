from dataclasses import replace
from pathlib import Path

from punica_serve.cli.up.plan import Plan, runner_ids
from punica_serve.config.tls_section import HttpsConfig
from punica_serve.process.logs import LogFormat, LogLevel

PLAN = Plan(
    config=Path("/etc/punica.yaml"),
    log_level=LogLevel.INFO,
    log_format=LogFormat.JSON,
    scheduler_host="0.0.0.0",
    scheduler_port=8100,
    is_tls=False,
    runner_ids=("host-0", "host-1"),
    frontend_host="0.0.0.0",
    insecure_no_auth=False,
    frontend_ports=(8000, 8001),
)


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_every_process_dials_the_one_scheduler() -> None:
    assert option(PLAN.scheduler().command, "--port") == "8100"
    for process in PLAN.runners() + PLAN.frontends():
        assert option(process.command, "--scheduler-url") == "ws://127.0.0.1:8100"


def test_every_runner_has_its_own_id() -> None:
    assert [option(runner.command, "--runner-id") for runner in PLAN.runners()] == ["host-0", "host-1"]
    assert [runner.name for runner in PLAN.runners()] == ["runner host-0", "runner host-1"]


def test_every_frontend_has_its_own_port() -> None:
    assert [option(frontend.command, "--port") for frontend in PLAN.frontends()] == ["8000", "8001"]
    assert [frontend.name for frontend in PLAN.frontends()] == ["frontend on port 8000", "frontend on port 8001"]
    assert PLAN.urls == ["http://127.0.0.1:8000", "http://127.0.0.1:8001"]
    tls = HttpsConfig(cert=Path("/etc/cert.pem"), key=Path("/etc/key.pem"))
    assert replace(PLAN, https=tls).urls == ["https://127.0.0.1:8000", "https://127.0.0.1:8001"]


def test_one_of_a_kind_is_called_by_its_role() -> None:
    plan = replace(PLAN, runner_ids=("host",), frontend_ports=(8000,))
    assert [process.name for process in (plan.scheduler(), *plan.runners(), *plan.frontends())] == [
        "scheduler",
        "runner",
        "frontend",
    ]


def test_runners_of_one_host_are_numbered() -> None:
    (host,) = runner_ids(1)
    assert runner_ids(2) == (f"{host}-0", f"{host}-1")


def test_frontends_are_told_to_let_everybody_in() -> None:
    assert all("--insecure-no-auth" not in frontend.command for frontend in PLAN.frontends())
    everybody = replace(PLAN, insecure_no_auth=True)
    assert all("--insecure-no-auth" in frontend.command for frontend in everybody.frontends())
    assert all("--insecure-no-auth" not in other.command for other in (everybody.scheduler(), *everybody.runners()))
