import subprocess
import sys

import pytest

LISTED = "import sys; from punica_serve.cli import main; main() if False else None; print(*sys.modules)"


def test_help_lists_the_commands() -> None:
    help_text = subprocess.run(
        [sys.executable, "-m", "punica_serve.cli", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for command in ("up", "generate", "scheduler", "runner", "frontend", "config"):
        assert f" {command} " in help_text


@pytest.mark.parametrize("module", ["torch", "fastapi", "pydantic", "websockets", "httpx"])
def test_the_command_line_itself_is_light(module: str) -> None:
    modules = subprocess.run([sys.executable, "-c", LISTED], capture_output=True, text=True, check=True).stdout.split()
    assert "punica_serve.cli.up" in modules
    assert module not in modules
