"""Two processes: this one and another, joined by gloo on CPUs, and by NCCL in CUDA graphs on two GPUs."""

from pathlib import Path

import pytest
import torch

from group_rank import serve_in_two
from mixed_batch import assert_same, serve, write_adapters
from punica_serve.base_model.model_config import ModelConfig


@pytest.mark.slow
def test_two_processes_say_what_one_says(
    tiny_llama: Path, tiny_model: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    adapters = write_adapters(tmp_path / "adapters", tiny_model)
    answers = serve_in_two(tmp_path / "store", "cpu", tiny_llama, adapters)
    assert_same(answers, serve(tiny_llama, adapters))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason=f"needs 2 GPUs, there are {torch.cuda.device_count()}")
@pytest.mark.parametrize("one_shot_bytes", [0, 1 << 20])
def test_two_gpus_say_what_one_says(
    tiny_llama: Path, tiny_model: ModelConfig, tmp_path: Path, one_shot_bytes: int
) -> None:
    adapters = write_adapters(tmp_path / "adapters", tiny_model)
    expected = serve(tiny_llama, adapters, device="cuda:0")
    answers = serve_in_two(tmp_path / "store", "cuda", tiny_llama, adapters, one_shot_bytes)
    assert_same(answers, expected)
