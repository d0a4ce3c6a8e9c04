"""The example that compares a checkpoint with transformers, run as a script."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[4] / "examples" / "check_checkpoint.py"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Its exit code, and what it printed."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    return run


@pytest.mark.parametrize("model_type", ["qwen3", "phi3", "gemma2"])
def test_a_checkpoint_agrees(
    run: Callable[..., tuple[int, str, str]], make_model: Callable[..., Path], model_type: str
) -> None:
    exit_code, stdout, _ = run(make_model(model_type))
    assert exit_code == 0 and "largest difference" in stdout


def test_a_folder_that_is_not_served_is_refused(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    exit_code, _, stderr = run(tmp_path / "none")
    assert exit_code == 2 and f"model folder {tmp_path / 'none'} does not exist" in stderr


def test_it_says_what_to_install(
    run: Callable[..., tuple[int, str, str]], tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    monkeypatch.delitem(sys.modules, "punica_serve.cli.adapters.parity", raising=False)
    exit_code, _, stderr = run(tiny_llama)
    assert exit_code == 2 and "peft is not installed; pip install 'punica-serve[parity]'" in stderr
