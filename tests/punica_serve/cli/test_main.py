import importlib
import signal
import subprocess
import sys

import pytest

from punica_serve import cli
from punica_serve.cli import commands
from punica_serve.version import __version__

LISTED = "import sys; import punica_serve.cli.commands; print(*sys.modules)"

INTERRUPTED_AT_THE_IMPORT = """
import os, runpy, signal, sys

class Interrupter:
    def find_spec(self, name, path, target=None):
        if name == wanted:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

wanted = sys.argv.pop(1)
sys.meta_path.insert(0, Interrupter())
runpy.run_module("punica_serve.cli", run_name="__main__")
"""


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


@pytest.mark.parametrize(
    ("module", "wanted"),
    [
        ("torch", "punica-serve[engine]"),
        ("matplotlib", "punica-serve[bench]"),
        ("ray", "punica-serve[ray]"),
        ("opentelemetry", "punica-serve[otel]"),
    ],
)
def test_a_package_that_is_not_installed_is_told_in_one_line(
    module: str, wanted: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        monkeypatch.setitem(sys.modules, module, None)
        importlib.import_module(module)

    monkeypatch.setattr(commands, "app", command)
    with pytest.raises(SystemExit) as end:
        commands.run()
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert told == f"punica-serve: {module} is not installed; pip install '{wanted}'\n"


@pytest.mark.parametrize("module", ["colorsys", "punica_serve.missing"])
def test_another_module_that_is_missing_is_our_mistake(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def command() -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(commands, "app", command)
    with pytest.raises(ModuleNotFoundError):
        commands.run()


def test_the_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["punica-serve", "--version"])
    with pytest.raises(SystemExit) as end:
        commands.run()
    assert (end.value.code, capsys.readouterr().out) == (0, f"{__version__}\n")


@pytest.mark.parametrize(
    ("module", "returncode"), [("typer", -signal.SIGINT), ("pydantic", cli.EXIT_INTERRUPTED)], ids=["cli", "command"]
)
def test_an_interrupt_during_the_imports_prints_no_traceback(module: str, returncode: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT_THE_IMPORT, module, "config", "check", "none.yaml"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, "Traceback" in ended.stderr) == (returncode, False), ended.stderr


def test_an_interrupt_that_no_command_catches_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "run", interrupted)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == cli.EXIT_INTERRUPTED


def test_a_fault_in_native_code_leaves_its_stacks_on_stderr() -> None:
    fault = "import os, signal; from punica_serve.cli import commands, main;"
    fault += "commands.run = lambda: os.kill(os.getpid(), signal.SIGSEGV); main()"
    ended = subprocess.run([sys.executable, "-c", fault], capture_output=True, text=True, timeout=60)
    assert ended.returncode == -signal.SIGSEGV
    assert ended.stderr.startswith("Fatal Python error: Segmentation fault"), ended.stderr


def test_a_command_whose_stderr_is_closed_still_runs() -> None:
    command = ["bash", "-c", '"$0" -m punica_serve.cli --version 2>&-', sys.executable]
    assert subprocess.run(command, stdout=subprocess.PIPE, timeout=60).returncode == 0
