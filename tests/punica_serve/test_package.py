"""Imports of the packages, each in a process of its own: the control plane's images have no torch."""

import subprocess
import sys

import pytest


def _run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize(
    "module",
    [
        "punica_serve",
        "punica_serve.cli",
        "punica_scheduler.server",
        "punica_runner.supervisor",
        "punica_frontend.main",
        "punica_serve.bench.control_plane.run",
    ],
)
def test_the_control_plane_never_imports_torch(module: str) -> None:
    code = f"import sys, {module}; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    assert _run(code) == "[]\n"


@pytest.mark.parametrize(
    "module", ["punica_runner.engine_steps", "punica_serve.offline.llm", "punica_serve.engine.rank_main"]
)
def test_a_leader_has_not_imported_torch_when_it_starts_its_ranks(module: str) -> None:
    """They take as long as it does, and so do it at the same time."""
    code = f"import sys, {module}, punica_serve.engine.ranks.rank_processes; print('torch' in sys.modules)"
    assert _run(code) == "False\n"


def test_modules_of_gpus_can_be_imported_before_a_runner_is_made() -> None:
    code = "import sys, torch; from punica_serve.engine.device_runner import import_runner; "
    code += "import_runner(torch.device({!r})); print('punica_serve.engine.cuda.cuda_runner' in sys.modules)"
    assert [_run(code.format(device)) for device in ("cpu", "cuda")] == ["False\n", "True\n"]


def test_llm_is_there_when_it_is_asked_for() -> None:
    assert _run("import punica_serve; print(punica_serve.LLM.__name__)") == "LLM\n"


def test_what_is_not_there_is_said_as_python_says_it() -> None:
    import punica_serve

    with pytest.raises(AttributeError, match="module 'punica_serve' has no attribute 'nothing'"):
        _ = punica_serve.nothing
