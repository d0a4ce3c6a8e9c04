"""docker/compose.yaml and its overrides, read by us and, where it is installed, by Compose."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from compose_cluster import compose_program
from punica_serve.cli.commands import app
from punica_serve.config.cluster import load_config

DOCKER = Path(__file__).parents[2] / "docker"
BASE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = BASE["services"]
OVERRIDES = ("compose.secure.yaml", "compose.gpu.yaml")
#: Services whose images are built here, with a user in them.
OWN = ("control", "runner", "proxy")

#: A process that is told to stop has so long to finish what it has begun.
DRAINS_S = {"frontend": 30.0, "runner": 35.0, "proxy": 50.0}


def service_names() -> list[str]:
    return list(SERVICES)


@pytest.mark.parametrize("name", service_names())
def test_a_service_can_do_no_more_than_it_must(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"] and "cap_add" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service and "docker.sock" not in str(service.get("volumes"))


@pytest.mark.parametrize("name", service_names())
def test_a_service_has_its_share_of_the_machine(name: str) -> None:
    service = SERVICES[name]
    assert {"mem_limit", "cpus", "pids_limit", "logging"} <= service.keys()
    assert service["cpus"] <= 1, "no machine has fewer, and Docker refuses what it has not"


@pytest.mark.parametrize("name", service_names())
def test_a_service_runs_as_a_nobody(name: str) -> None:
    service = SERVICES[name]
    if "build" not in service:
        assert re.fullmatch(r"[1-9]\d*:\d+", service["user"])
        return
    dockerfile = (DOCKER.parent / service["build"]["dockerfile"]).read_text()
    users = re.findall(r"^USER (\S+)", dockerfile, re.MULTILINE)
    assert users and users[-1].split(":")[0] not in ("0", "root")


def test_every_port_is_published_on_this_machine_alone() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize("file", ["compose.yaml", *OVERRIDES])
def test_no_secret_is_in_an_environment(file: str) -> None:
    """Only names of files with secrets in them."""
    for service in yaml.safe_load((DOCKER / file).read_text())["services"].values():
        for name, value in service.get("environment", {}).items():
            if re.search("TOKEN|PASSWORD|SECRET|KEY", name):
                assert re.search("_FILE$", name) and value.startswith(("/run/secrets/", "/var/lib/punica-token/"))


@pytest.mark.parametrize(("name", "drain_s"), DRAINS_S.items())
def test_nobody_is_killed_in_the_middle_of_a_drain(name: str, drain_s: float) -> None:
    config = load_config(DOCKER.parent / "configs/compose.yaml")
    drains = {
        "frontend": config.frontend.drain_timeout_s,
        "runner": config.runner.drain_timeout_s + config.runner.stop_timeout_s,
        "proxy": float(re.findall(r"hard-stop-after (\d+)s", (DOCKER / "haproxy/common.cfg").read_text())[0]),
    }
    assert drains[name] == drain_s < float(SERVICES[name]["stop_grace_period"].removesuffix("s"))


def test_what_finishes_is_stopped_before_what_it_needs() -> None:
    assert "frontend" in SERVICES["proxy"]["depends_on"]
    assert {"runner", "scheduler"} <= SERVICES["frontend"]["depends_on"].keys()
    assert "scheduler" in SERVICES["runner"]["depends_on"]


def test_secure_asks_for_keys_and_certificates() -> None:
    secure = yaml.safe_load((DOCKER / "compose.secure.yaml").read_text())["services"]
    config = load_config(DOCKER.parent / "configs/compose-secure.yaml")
    assert config.tls is not None and not config.frontend.insecure_no_auth
    assert "0.0.0.0/0" in config.frontend.trusted_proxies, "the proxy is another host"
    assert "--insecure-no-auth" in SERVICES["frontend"]["command"]
    assert "--insecure-no-auth" not in secure["frontend"]["command"]
    for name in ("frontend", "scheduler", "runner"):
        targets = {secret["target"] for secret in secure[name]["secrets"] if isinstance(secret, dict)}
        assert targets == {path.name for path in (config.tls.cert, config.tls.key, config.tls.ca)}


@pytest.mark.parametrize("name", ["compose", "compose-secure", "compose-postgres", "compose-gpu"])
def test_a_config_is_one_that_processes_take(name: str) -> None:
    config = load_config(DOCKER.parent / f"configs/{name}.yaml")
    assert str(config.data_folder) == "/var/lib/punica-serve"
    assert (config.scheduler.host, config.frontend.port) == ("scheduler", 8000)
    assert len(config.adapters) == 5, "the demo answers without a download"


@pytest.mark.parametrize("file", ["compose.yaml", *OVERRIDES])
def test_the_command_line_knows_every_option(file: str) -> None:
    commands = typer.main.get_group(app).commands
    for service in yaml.safe_load((DOCKER / file).read_text())["services"].values():
        words = service.get("command", [""])
        if words[0] in ("frontend", "scheduler", "runner"):
            known = {option for parameter in commands[words[0]].params for option in parameter.opts}
            assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.skipif(compose_program() is None, reason="needs Docker Compose, or docker-compose")
@pytest.mark.parametrize(
    "options", [[], ["--env-file", str(DOCKER / "full.env")], *(["-f", str(DOCKER / name)] for name in OVERRIDES)]
)
def test_compose_reads_it(options: list[str]) -> None:
    program = compose_program()
    assert program is not None
    command = [*program, "-f", str(DOCKER / "compose.yaml"), *options, "config"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    assert str(services["frontend"]["volumes"]).count("/etc/punica-serve/cluster.yaml") == 1
