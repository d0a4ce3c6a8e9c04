"""A device that can't be had is said in one line, by every benchmark, before anything is made."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

ENGINE_BENCHMARKS = ("batching", "coldstart", "coldstart-series", "cpu-assist", "decode-ranks", "overhead", "textgen")


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a machine with a GPU there is nothing to say")
@pytest.mark.parametrize(
    "arguments",
    [["kernels"], ["layer"], *([command, "--shape", "llama-2-7b"] for command in ENGINE_BENCHMARKS)],
    ids=lambda arguments: arguments[0],
)
def test_without_a_gpu(cli: Callable[..., Any], arguments: list[str], tmp_path: Path) -> None:
    outcome = cli("bench", *arguments, "--out", str(tmp_path / "out"))
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith("punica-serve: device 'cuda:0' can't be used: ")
    assert len(outcome.stderr.splitlines()) == 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["kernels", "layer", "textgen"])
@pytest.mark.parametrize("device", ["foo", "meta", "cuda:x"])
def test_a_device_that_is_none(cli: Callable[..., Any], command: str, device: str, tmp_path: Path) -> None:
    shape = ["--shape", "1b"]
    outcome = cli(
        "bench", command, "--device", device, "--out", str(tmp_path), *(shape if command != "kernels" else [])
    )
    assert outcome.exit_code == 2 and outcome.stderr == f"punica-serve: device '{device}' is neither cpu nor cuda:N\n"
    assert len(outcome.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["coldstart", "cpu-assist", "overhead", "prefix-caching"])
def test_a_group_where_one_device_is_measured(cli: Callable[..., Any], command: str, tmp_path: Path) -> None:
    outcome = cli("bench", command, "--config", "demo-tp2", "--out", str(tmp_path / "out"))
    assert outcome.exit_code == 2 and not (tmp_path / "out").exists()
    message = "this command measures one device, and 'cpu,cpu' is a group; name one device by `--device`"
    assert outcome.stderr == f"punica-serve: {message}\n"
