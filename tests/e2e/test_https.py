"""`punica-serve up` with a certificate for its frontends, and the commands that ask them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from https_files import write_https_files
from punica_serve.links.https_client import CA_FILE_ENV
from up_cluster import Start

pytestmark = pytest.mark.slow


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "punica_serve.cli", *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=100, check=False
    )


def test_a_cluster_over_https(run_demo: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_https_files(tmp_path / "tls")
    monkeypatch.setenv(CA_FILE_ENV, str(files.ca))
    with run_demo(frontend={"tls": files.settings}) as cluster:
        assert cluster.url.startswith("https://")
        assert cluster.get("/health").is_success and cluster.get("/ready").is_success
        where = {"PUNICA_URL": cluster.url}
        assert run("generate", "42", "--lora-id", "roman", **where).stdout == "XLII\n"
        assert "1 frontend" in run("top", "--once", **where).stdout
        assert "shared/roman" in run("adapters", "list", **where).stdout
        refused = run("generate", "42", **where, **{CA_FILE_ENV: ""})
        assert refused.returncode == 2 and f"set {CA_FILE_ENV} to a file" in refused.stderr
