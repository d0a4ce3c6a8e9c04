"""The units as systemd itself reads them, and their commands as the command line does."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.process.run import TOKEN_FILE_ENV

UNITS = Path(__file__).parents[2] / "configs/systemd"
NAMES = ("punica-scheduler.service", "punica-runner.service", "punica-frontend@.service")
INSTALLED = "/opt/punica-serve/.venv/bin/punica-serve"


def command_of(unit: str) -> list[str]:
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    return shlex.split(line.removeprefix("ExecStart="))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("name", NAMES)
def test_systemd_finds_nothing_to_say(name: str, tmp_path: Path) -> None:
    """Where this machine has the command and the page in other places."""
    unit = tmp_path / name
    text = (UNITS / name).read_text().replace(INSTALLED, sys.executable)
    unit.write_text(text.replace("User=punica", f"User={os.getuid()}"))
    found = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    about_it = [line for line in found.stderr.splitlines() if name.split("@")[0].split(".")[0] in line]
    assert not about_it and found.returncode == 0, found.stderr


@pytest.mark.parametrize("name", NAMES)
def test_the_command_line_knows_every_option(name: str) -> None:
    program, command, *arguments = command_of((UNITS / name).read_text())
    assert program == INSTALLED
    asked = [sys.executable, "-P", "-m", "punica_serve.cli", command, "--help"]
    known = subprocess.run(asked, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"})
    options = [argument for argument in arguments if argument.startswith("--")]
    assert options and all(option in known.stdout for option in options)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_is_in_a_folder_that_systemd_makes_and_nobody_else_reads(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (UNITS / name).read_text().splitlines()
    assert {"UMask=0077", "StateDirectory=punica-serve", "StateDirectoryMode=0700", "ProtectSystem=strict"} <= set(
        lines
    )
    assert "Environment=XDG_DATA_HOME=%S" in lines, "%S is /var/lib in a system's unit"
    monkeypatch.setenv("XDG_DATA_HOME", "/var/lib")
    assert ClusterConfig(engine=EngineConfig(model=Path("m"))).data_folder == Path("/var/lib/punica-serve")


@pytest.mark.parametrize("name", NAMES)
def test_the_token_comes_from_a_credential(name: str) -> None:
    assert f"Environment={TOKEN_FILE_ENV}=%d/cluster-token" in (UNITS / name).read_text()
