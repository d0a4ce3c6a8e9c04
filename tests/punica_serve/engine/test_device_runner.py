"""A GPU without memory for its steps. No GPU is needed: CUDA's errors are simulated."""

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from punica_serve.base_model.config_json import read_model_config
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine import device_runner
from punica_serve.engine.device_runner import make_runner
from punica_serve.errors import ConfigError

GIB = 1 << 30


def make_failing(
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    free_gib: list[float],
    during: tuple[float, ...] = (),
    **settings: Any,
) -> None:
    """A runner that can't be made, on a GPU of 40 GiB where so much is free, one number for each question, and before
    each capture ``during`` the start.
    """
    cuda_runner = pytest.importorskip("punica_serve.engine.cuda.cuda_runner")
    left = list(during)

    def fail(*_: Any, progress: Any, **__: Any) -> None:
        for done in range(len(during)):
            progress(done, 60)
        raise error

    monkeypatch.setattr(cuda_runner, "CudaRunner", fail)
    monkeypatch.setattr(device_runner, "total_bytes", lambda _: 40 * GIB)
    monkeypatch.setattr(device_runner, "free_bytes", lambda _: int(free_gib.pop(0) * GIB))
    monkeypatch.setattr(device_runner, "unreserved_bytes", lambda _: int(left.pop(0) * GIB))
    cache: Any = SimpleNamespace(pool=SimpleNamespace(device=torch.device("cuda", 0), dtype=torch.bfloat16))
    nothing: Any = None
    config = EngineConfig.model_validate({"model": "shape:llama-2-7b", "attention": "triton"} | settings)
    model: Any = SimpleNamespace(config=read_model_config(config.model))
    make_runner(config, model, cache, nothing, nothing, nothing, nothing, nothing, ExitStack())


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("Tried to allocate 2.00 GiB"), RuntimeError("CUDA error: out of memory\nstack")]
)
def test_the_error_names_the_memory_that_steps_took_and_what_fits(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    message = (
        r"^steps of 32 requests and 16384 prompt tokens do not fit cuda:0: 2 of 60 kinds of steps took 4\.5 GiB of the"
        r" 5\.0 GiB that weights and pools leave, and more was needed"
        rf" \({str(error).splitlines()[0]}\); lower `engine\.prefill_budget_tokens` to \d+ or"
        r" `engine\.device_memory_share` to 0\.\d+$"
    )
    with pytest.raises(ConfigError, match=message) as caught:
        make_failing(monkeypatch, error, [5, 0.5], during=(4.9, 1.2, 1.1), prefill_budget_tokens=16384)
    assert caught.value.param == "engine.prefill_budget_tokens"


def test_steps_that_surely_exceed_the_memory_are_refused_before_any_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    message = (
        r"^steps of 32 requests and 65536 prompt tokens do not fit cuda:0: they take 8\.\d GiB at least, and weights"
        r" and pools leave 5\.0 GiB; lower `engine\.prefill_budget_tokens` to \d+ or .*_memory_share` to 0\.8"
    )
    with pytest.raises(ConfigError, match=message):
        make_failing(monkeypatch, AssertionError("not made"), [5], prefill_budget_tokens=65536)


def test_other_errors_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="illegal memory access"):
        make_failing(monkeypatch, RuntimeError("CUDA error: an illegal memory access was encountered"), [5])
