"""The parts that are timed are the engine's launches of a layer, in Triton's interpreter."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from interpreted_lora import NUM_ROWS, NoAttention, interpreted_lora
from punica_kernels.bench.timing import Call
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.bench.layer.lora_calls import LoraCalls
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.cuda import cuda_lora
from punica_serve.engine.cuda.cuda_lora import CudaLora
from punica_serve.models.llama import Llama
from punica_serve.models.model import ForwardBatch
from punica_serve.models.model_weights import ModelWeights, dummy_weights
from tiny_config import tiny_config
from triton_interpreter import fast_interpreter

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is for machines without a GPU")
CPU = torch.device("cpu")
MODEL: ModelConfig = tiny_config()


@pytest.fixture(autouse=True)
def _fast_interpreter() -> Iterator[None]:
    with fast_interpreter():
        yield


@pytest.fixture
def weights() -> ModelWeights:
    return dummy_weights(MODEL, torch.float32, CPU)


@pytest.fixture(params=[False, True], ids=["expand", "activation"])
def lora(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> CudaLora:
    """LoRA whose activation expands, or does not."""
    monkeypatch.setattr(cuda_lora, "activation_expands", lambda *_: request.param)
    return interpreted_lora(MODEL, monkeypatch)


def calls_of(lora: CudaLora, weights: ModelWeights) -> LoraCalls:
    return LoraCalls(lora, MODEL, weights.embedding, NUM_ROWS)


Launches = list[tuple[str, int]]


def _note(monkeypatch: pytest.MonkeyPatch, *, launches: bool) -> Launches:
    """The kernel and the first weight of each shrink and expand, which are launched or left out."""
    seen: Launches = []

    def noting(name: str) -> Callable[..., None]:
        launch = getattr(cuda_lora, name)

        def note(out: Tensor, into: Tensor, pages: Tensor, *args: object, **options: object) -> None:
            seen.append((name, pages.data_ptr()))
            if launches:
                launch(out, into, pages, *args, **options)

        return note

    for name in ("shrink", "expand"):
        monkeypatch.setattr(cuda_lora, name, noting(name))
    return seen


def test_they_are_the_launches_of_a_forward_pass(
    lora: CudaLora, weights: ModelWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = _note(monkeypatch, launches=False)
    cache = KvCache(MODEL, num_pages=6, page_size=4, dtype=torch.float32, device=CPU)
    rows = torch.arange(NUM_ROWS)
    Llama(MODEL, weights).forward(ForwardBatch(rows, rows, NoAttention(cache), lora))
    of_the_engine = sorted(launches)
    calls = calls_of(lora, weights)
    launches.clear()
    parts: list[list[Call]] = [calls.shrinks(), *calls.expands().values()]
    assert {len(own) for own in parts} == {MODEL.num_hidden_layers}
    for part in parts:
        for call in part:
            call()
    assert sorted(launches) == of_the_engine


def test_the_activation_adds_lora_once(lora: CudaLora, weights: ModelWeights, monkeypatch: pytest.MonkeyPatch) -> None:
    """The expand of gate and up is either a part of its own or within the activation."""
    launches = _note(monkeypatch, launches=True)
    calls = calls_of(lora, weights)
    activations = calls.activations()
    (bare, *_) = calls.bare_activations()
    assert ("gate_up" in calls.expands()) == (not lora.activation_expands("gate_up"))
    launches.clear()
    changed = ~activations[-1]().isclose(bare(), rtol=1e-4).all(1)
    assert changed.tolist() == [True] * 18 + [False] + [True] * 2 + [False]
    assert not launches
