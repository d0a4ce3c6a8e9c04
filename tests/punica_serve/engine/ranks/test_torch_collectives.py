"""Two processes, joined by gloo on CPUs, and by each exchange in CUDA graphs on two GPUs."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import drawing_rank
from group_rank import log_of, serve_in_two
from mixed_batch import assert_same, serve, write_adapters
from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.base_model.rank import Rank
from punica_serve.bench.collectives.exchange_run import write_times
from punica_serve.engine.ranks.exchange_choice import WAYS, ExchangeTime, MeasuredGroup, Way
from punica_serve.engine.ranks.rank_loss import ExchangeFailed
from punica_serve.engine.ranks.rendezvous import join, leave, open_port

#: One rank alone, and two that end by a deadline of their own.
_GPU_TIMEOUT_S = 180
_DEADLINE_S = 120.0


@pytest.mark.slow
def test_two_processes_say_what_one_says(
    tiny_llama: Path, tiny_model: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    adapters = write_adapters(tmp_path / "adapters", tiny_model)
    answers = serve_in_two(tmp_path / "store", "cpu", tiny_llama, adapters, divide_lora_from=1)
    assert_same(answers, serve(tiny_llama, adapters))


@pytest.mark.slow
def test_two_processes_exchange_shares_and_sample_filtered_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    _draw_in_two(tmp_path / "store", "cpu")


#: Joins as the second of two ranks, and is gone.
_GONE = """
import os, sys, torch
from punica_serve.base_model.rank import Rank
from punica_serve.engine.ranks.rendezvous import join, reach_port

join(reach_port("127.0.0.1", int(sys.argv[1]), 60.0), torch.device("cpu"), Rank(1, 2), 60.0)
os._exit(0)
"""


@pytest.mark.slow
def test_an_exchange_whose_peer_is_gone_fails_by_name() -> None:
    """Not as an error of this rank's own work, which would be a RuntimeError of torch too."""
    store = open_port("127.0.0.1", 60.0)
    with subprocess.Popen([sys.executable, "-c", _GONE, f"{store.port}"]) as peer:
        collectives = join(store, torch.device("cpu"), Rank(0, 2), 60.0)
        assert peer.wait(60.0) == 0
    try:
        exchanges: tuple[Callable[[Tensor], Tensor], ...] = (
            collectives.all_reduce,
            collectives.all_gather,
            collectives.all_to_all,
        )
        for exchange in exchanges:
            with pytest.raises(ExchangeFailed, match=r"^an exchange with the other ranks has failed: "):
                exchange(torch.ones(2, 4))
    finally:
        leave()


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is for machines without a GPU")
@pytest.mark.parametrize("model_type", ["llama", "gemma2"])
def test_so_they_do_with_the_kernel_that_exchanges_and_norms(
    make_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_type: str
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    model = make_model(model_type)
    adapters = write_adapters(tmp_path / "adapters", read_model_config(model))
    answers = serve_in_two(tmp_path / "store", "cpu", model, adapters, max_fused_rows=7)
    assert_same(answers, serve(model, adapters))


@pytest.mark.gpu
@pytest.mark.timeout(_GPU_TIMEOUT_S)
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason=f"needs 2 GPUs, there are {torch.cuda.device_count()}")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("divide_lora_from", [None, 1])
def test_two_gpus_say_what_one_says(
    tiny_llama: Path, tiny_model: ModelConfig, tmp_path: Path, way: Way, divide_lora_from: int | None
) -> None:
    adapters = write_adapters(tmp_path / "adapters", tiny_model)
    expected = serve(tiny_llama, adapters, device="cuda:0")
    settings: dict[str, Any] = {
        "exchange": "auto",
        "exchange_times": f"{_times(tmp_path, way)}",
        "divide_lora_from": divide_lora_from,
    }
    answers = serve_in_two(tmp_path / "store", "cuda", tiny_llama, adapters, **settings)
    assert_same(answers, expected)
    confirmed = f"sums over ranks: {way} up to 1,048,576 bytes, nccl beyond"
    assert (confirmed in log_of(tmp_path / "store")) == (way != "nccl"), "the start has confirmed it"


@pytest.mark.gpu
@pytest.mark.timeout(_GPU_TIMEOUT_S)
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason=f"needs 2 GPUs, there are {torch.cuda.device_count()}")
def test_two_gpus_exchange_shares_and_sample_filtered_rows(tmp_path: Path) -> None:
    _draw_in_two(tmp_path / "store", "cuda")


@pytest.mark.gpu
@pytest.mark.timeout(_GPU_TIMEOUT_S)
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason=f"needs 2 GPUs, there are {torch.cuda.device_count()}")
@pytest.mark.parametrize("model_type", ["llama", "gemma2"])
def test_so_they_do_in_one_kernel_with_the_norm(
    make_model: Callable[..., Path], tmp_path: Path, model_type: str
) -> None:
    model = make_model(model_type)
    adapters = write_adapters(tmp_path / "adapters", read_model_config(model))
    expected = serve(model, adapters, device="cuda:0")
    answers = serve_in_two(tmp_path / "store", "cuda", model, adapters, exchange="fused")
    assert_same(answers, expected)
    assert "with the norm: fused up to" in log_of(tmp_path / "store"), "the start has confirmed it"


def _draw_in_two(store: Path, device: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    deadline_s = time.monotonic() + _DEADLINE_S
    with ExitStack() as stack:
        ranks = []
        for index in ("0", "1"):
            command = [sys.executable, drawing_rank.__file__, str(store), index, "2", device]
            ranks.append(stack.enter_context(subprocess.Popen(command, env=environment)))
            stack.callback(ranks[-1].kill)
        for rank in ranks:
            assert rank.wait(max(0.0, deadline_s - time.monotonic())) == 0


def _times(folder: Path, way: Way) -> Path:
    """Times by which these GPUs add up to 1 MiB by one way."""
    time = ExchangeTime.model_validate({"bytes": 1 << 20, "nccl": 9.0, way: 1.0})
    write_times(MeasuredGroup(device=torch.cuda.get_device_name(0), ranks=2, times=(time,)), folder / "times.yaml")
    return folder / "times.yaml"
