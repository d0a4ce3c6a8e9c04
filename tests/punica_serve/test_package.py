"""Imports of the packages, each in a process of its own: the control plane's images have no torch."""

import subprocess
import sys

import pytest


def _run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60).stdout


def _importing(modules: list[str], heavy: list[str]) -> str:
    """The first of the modules that imports one of the heavy ones, if any does."""
    code = "import importlib, sys\n"
    code += f"for module in {modules}:\n importlib.import_module(module)\n"
    code += f" if found := [name for name in {heavy} if name in sys.modules]: sys.exit(print(module, found))"
    return _run(code)


def test_the_control_plane_never_imports_torch() -> None:
    modules = [
        "punica_serve",
        "punica_serve.cli.commands",
        "punica_scheduler.server",
        "punica_runner.supervisor",
        "punica_frontend.main",
        "punica_serve.bench.control_plane.run",
    ]
    assert _importing(modules, ["torch", "transformers"]) == ""


def test_a_leader_has_not_imported_torch_when_it_starts_its_ranks() -> None:
    """They take as long as it does, and so do it at the same time."""
    leaders = ["punica_runner.engine_steps", "punica_serve.offline.llm", "punica_serve.engine.rank_main"]
    assert _importing([*leaders, "punica_serve.engine.ranks.rank_processes"], ["torch"]) == ""


def test_a_worker_has_imported_little_when_it_starts_its_ranks() -> None:
    """Its settings need some of it, and the ranks import torch meanwhile."""
    workers = ["punica_runner.worker", "punica_serve.bench.start.start_process"]
    assert _importing(workers, ["torch", "numpy", "pydantic", "asyncio"]) == ""


def test_modules_of_gpus_can_be_imported_before_a_runner_is_made() -> None:
    code = "import sys, torch; from punica_serve.engine.device_runner import import_runner\n"
    code += "for device in ('cpu', 'cuda'):\n import_runner(torch.device(device))\n"
    code += " print('punica_serve.engine.cuda.cuda_runner' in sys.modules)"
    assert _run(code) == "False\nTrue\n"


def test_llm_is_there_when_it_is_asked_for() -> None:
    assert _run("import punica_serve; print(punica_serve.LLM.__name__)") == "LLM\n"


def test_what_is_not_there_is_said_as_python_says_it() -> None:
    import punica_serve

    with pytest.raises(AttributeError, match="module 'punica_serve' has no attribute 'nothing'"):
        _ = punica_serve.nothing
