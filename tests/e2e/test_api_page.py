"""The examples of docs/api.md, run against the demo cluster: `# > text` is what an example's output must hold."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from up_cluster import UpCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text()
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", PAGE, flags=re.DOTALL)
_EXPECTED = re.compile(r"^# > (.*)$", flags=re.MULTILINE)


def steps(language: str, block: str) -> list[tuple[str, str]]:
    """Commands of a block, each with what its output must hold."""
    pieces = _EXPECTED.split(block)
    return list(zip(pieces[::2], pieces[1::2], strict=False))


@pytest.mark.parametrize(("language", "block"), BLOCKS, ids=[str(number) for number in range(len(BLOCKS))])
def test_an_example(cluster: UpCluster, language: str, block: str) -> None:
    assert steps(language, block), "an example that promises nothing"
    for code, expected in steps(language, block):
        code = code.replace("127.0.0.1:8000", cluster.url.removeprefix("http://"))
        command = ["bash", "-c", code] if language == "sh" else [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        assert expected in re.sub(r'(?<=[:,]) (?=["\[{\d])', "", done.stdout), code


def test_every_route_is_on_the_page(cluster: UpCluster) -> None:
    paths = cluster.get("/openapi.json").json()["paths"]
    groups = {"/v1/tenants", "/v1/keys"}
    for path in paths:
        stem = next((group for group in groups if path.startswith(group)), path)
        last = "/" + stem.rsplit("/", 1)[-1]
        assert stem in PAGE or last in PAGE, f"docs/api.md does not tell of {path}"
