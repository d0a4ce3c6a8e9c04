"""All that a layer does for an exchange, by each kernel that does it, between two GPUs in CUDA graphs."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import norm_rank
from group_rank import log_of, serve_in_two
from mixed_batch import assert_same, serve, write_adapters
from punica_serve.base_model.config_json import read_model_config
from punica_serve.engine.ranks.flashinfer_module import is_compiled

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(240),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason=f"needs 2 GPUs, there are {torch.cuda.device_count()}"),
]
_DEADLINE_S = 120.0


@pytest.fixture
def flashinfer() -> None:
    if find_spec("flashinfer") is None:
        pytest.skip("needs FlashInfer (extra `gpu`)")
    if not is_compiled():
        pytest.skip("needs FlashInfer's kernels, which `flashinfer_module.compile_module()` compiles")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_ours_is_as_float64_has_it(tmp_path: Path, dtype: str) -> None:
    _compare_in_two(tmp_path / "store", "fused", dtype)


@pytest.mark.usefixtures("flashinfer")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_so_is_flashinfers(tmp_path: Path, dtype: str) -> None:
    _compare_in_two(tmp_path / "store", "flashinfer", dtype)


@pytest.mark.usefixtures("flashinfer")
def test_two_gpus_say_with_it_what_one_says(make_model: Callable[..., Path], tmp_path: Path) -> None:
    model = make_model("llama", hidden_size=128)
    adapters = write_adapters(tmp_path / "adapters", read_model_config(model))
    expected = serve(model, adapters, device="cuda:0")
    answers = serve_in_two(tmp_path / "store", "cuda", model, adapters, exchange="flashinfer")
    assert_same(answers, expected)
    assert "with the norm: flashinfer up to 1,048,576 bytes" in log_of(tmp_path / "store"), "the start has confirmed it"


@pytest.mark.usefixtures("flashinfer")
def test_a_model_that_it_does_not_take_is_served_without_it(make_model: Callable[..., Path], tmp_path: Path) -> None:
    model = make_model("gemma2")
    adapters = write_adapters(tmp_path / "adapters", read_model_config(model))
    answers = serve_in_two(tmp_path / "store", "cuda", model, adapters, exchange="flashinfer")
    assert_same(answers, serve(model, adapters, device="cuda:0"))
    log = log_of(tmp_path / "store")
    assert "exchanges of layers are not FlashInfer's: rank 0 can't take FlashInfer's exchange: its norms take" in log


def _compare_in_two(store: Path, way: str, dtype: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    deadline_s = time.monotonic() + _DEADLINE_S
    with ExitStack() as stack:
        ranks = []
        for index in ("0", "1"):
            command = [sys.executable, norm_rank.__file__, str(store), index, "2", way, dtype]
            ranks.append(stack.enter_context(subprocess.Popen(command, env=environment)))
            stack.callback(ranks[-1].kill)
        for rank in ranks:
            assert rank.wait(max(0.0, deadline_s - time.monotonic())) == 0
