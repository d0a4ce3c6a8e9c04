"""LoRA of a forward pass by SGMV's kernels, in Triton's interpreter, with streams that run in order."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from interpreted_lora import NUM_ROWS, NoAttention, interpreted_lora
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.cuda import cuda_lora
from punica_serve.engine.cuda.cuda_lora import CudaLora
from punica_serve.models.llama import Llama
from punica_serve.models.model import ForwardBatch
from punica_serve.models.model_weights import dummy_weights
from tiny_config import tiny_config
from triton_interpreter import fast_interpreter

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is for machines without a GPU")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _fast_interpreter() -> Iterator[None]:
    with fast_interpreter():
        yield


@pytest.mark.parametrize("values", [{}, {"qk_norm": True, "is_gemma": True, "norms_behind_blocks": True}])
def test_an_activation_that_expands_lora_gives_what_another_reads(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, bool]
) -> None:
    model = tiny_config(**values)
    llama = Llama(model, dummy_weights(model, torch.float32, CPU))
    rows = torch.arange(NUM_ROWS)

    def run(lora: CudaLora) -> tuple[Tensor, Tensor]:
        cache = KvCache(model, num_pages=6, page_size=4, dtype=torch.float32, device=CPU)
        return llama.forward(ForwardBatch(rows, rows, NoAttention(cache), lora)).clone(), cache.pool

    base = run(interpreted_lora(model, monkeypatch, has_adapters=False))
    lora = interpreted_lora(model, monkeypatch)
    monkeypatch.setattr(cuda_lora, "activation_expands", lambda *_: False)
    expected = run(lora)
    assert not torch.allclose(base[0][:18], expected[0][:18], rtol=0.1)
    monkeypatch.setattr(cuda_lora, "activation_expands", lambda *_: True)
    for own, other in zip(run(lora), expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)
