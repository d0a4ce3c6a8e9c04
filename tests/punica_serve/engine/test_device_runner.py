"""A GPU without memory for its steps. No GPU is needed: CUDA's errors are simulated."""

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine import device_runner
from punica_serve.engine.device_runner import make_runner
from punica_serve.errors import ConfigError


def make_failing(monkeypatch: pytest.MonkeyPatch, error: Exception, free_gib: list[int]) -> None:
    """A runner that can't be made, on a GPU where so much is free, one number for each question."""
    cuda_runner = pytest.importorskip("punica_serve.engine.cuda.cuda_runner")

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(cuda_runner, "CudaRunner", fail)
    monkeypatch.setattr(device_runner, "free_bytes", lambda _: free_gib.pop(0) << 30)
    cache: Any = SimpleNamespace(pool=SimpleNamespace(device=torch.device("cuda", 0), dtype=torch.bfloat16))
    nothing: Any = None
    model: Any = SimpleNamespace(config=None)
    config = EngineConfig(model="demo:model", attention="triton")
    make_runner(config, model, cache, nothing, nothing, nothing, nothing, nothing, ExitStack())


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("Tried to allocate 2.00 GiB"), RuntimeError("CUDA error: out of memory\nstack")]
)
def test_the_error_names_the_memory_that_steps_took(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    message = (
        r"^steps of \d+ requests and \d+ prompt tokens do not fit cuda:0: they took 4\.0 GiB of the 5\.0 GiB beside its"
        r" KvCache and needed more; lower `engine\.device_memory_share`, .*"
        rf" \({str(error).splitlines()[0]}\)$"
    )
    with pytest.raises(ConfigError, match=message) as caught:
        make_failing(monkeypatch, error, [5, 1])
    assert caught.value.param == "engine.device_memory_share"


def test_other_errors_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="illegal memory access"):
        make_failing(monkeypatch, RuntimeError("CUDA error: an illegal memory access was encountered"), [5])
