"""The installed package, far from any checkout: `punica-serve up` runs the demo in any folder."""

import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 240.0


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
def url(installed: Path, tmp_path: Path) -> Iterator[str]:
    """The demo's frontend, started in an empty folder."""
    command = [str(installed.with_name("punica-serve")), "up", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as up:
        try:
            assert up.stdout is not None
            told = next(line for line in up.stdout if "http://" in line)
            found = re.search(r"http://[\w.:]+", told)
            assert found, told
            yield found[0]
        finally:
            up.terminate()
            up.wait(TIMEOUT_S)


def test_up_runs_the_demo_in_any_folder(installed: Path, url: str, tmp_path: Path) -> None:
    code = "import punica_serve; print(punica_serve.__file__)"
    where = subprocess.run([installed, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert where.startswith(str(installed.parents[1])), "the checkout was tested"
    answer = httpx.post(f"{url}/v1/generate", json={"prompt": "42", "lora_id": "roman"}, timeout=60.0, trust_env=False)
    assert answer.json()["text"] == "XLII"
