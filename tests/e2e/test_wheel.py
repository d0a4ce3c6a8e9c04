"""The installed package, far from any checkout: `punica-serve up` runs the demo in any folder."""

import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from punica_serve.bench.free_ports import free_ports

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 240.0
#: A checkout in PYTHONPATH would be found before the wheel.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel, and with this one's other packages."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], check=True, timeout=TIMEOUT_S)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=False)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    # A path file's own path files are not read, so the checkout's packages stay out.
    (site / "dependencies.pth").write_text(f"{Path(httpx.__file__).parents[1]}\n")
    python = str(folder / "venv/bin/python")
    command = [*pip, "--python", python, "install", "--no-deps", "--ignore-installed", str(wheel)]
    subprocess.run(command, check=True, timeout=TIMEOUT_S)
    return folder / "venv" / "bin" / "python"


@pytest.fixture
def demo(installed: Path, tmp_path: Path) -> Path:
    """The config that `up` takes without options, as the wheel has it."""
    code = "from punica_serve.cli import options as o; print(o.find_config(o.DEFAULT_CONFIG))"
    return Path(_printed_by(installed, code, tmp_path))


@pytest.fixture
def url(installed: Path, demo: Path, tmp_path: Path) -> Iterator[str]:
    """The demo's frontend, started in a folder with its config alone, on ports that nobody else has."""
    document = yaml.safe_load(demo.read_text())
    document["scheduler"]["port"], document["frontend"]["port"] = free_ports(2)
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(document))
    command = [str(installed.with_name("punica-serve")), "up", "--config", "cluster.yaml"]
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as up:
        try:
            assert up.stdout is not None
            told = next(line for line in up.stdout if "http://" in line)
            found = re.search(r"http://[\w.:]+", told)
            assert found, told
            yield found[0]
        finally:
            up.terminate()
            up.wait(TIMEOUT_S)


def _printed_by(python: Path, code: str, folder: Path) -> str:
    """What the code prints, run in this folder."""
    command = [str(python), "-c", code]
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_up_runs_the_demo_in_any_folder(installed: Path, demo: Path, url: str, tmp_path: Path) -> None:
    package = _printed_by(installed, "import punica_serve; print(punica_serve.__file__)", tmp_path)
    for file in (package, demo):
        assert Path(file).is_relative_to(installed.parents[1]), "the checkout was tested"
    answer = httpx.post(f"{url}/v1/generate", json={"prompt": "42", "lora_id": "roman"}, timeout=60.0, trust_env=False)
    assert answer.json()["text"] == "XLII"
