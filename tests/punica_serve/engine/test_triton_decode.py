"""The engine's decodes through our own kernel's tables, in Triton's interpreter; `test_cuda_attention` has the GPU's."""

import pytest
import torch

from punica_serve.engine import triton_decode
from punica_serve.engine.kv_cache import KvCache
from punica_serve.engine.planner import StepPlan
from punica_serve.engine.sequence import Sequence
from punica_serve.engine.step_pages import lay_out_pages
from punica_serve.engine.step_shape import StepShape
from punica_serve.model_config import ModelConfig
from punica_serve.protocol import Request, SamplingParams

PAGE_SIZE, HEADS, KV_HEADS, HEAD_DIM = 4, 4, 2, 64
MODEL = ModelConfig(
    vocab_size=8,
    hidden_size=HEADS * HEAD_DIM,
    intermediate_size=8,
    num_hidden_layers=2,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    max_position_embeddings=256,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    rope_scaling=None,
    rope_linear_factor=1.0,
    tie_word_embeddings=True,
    name="tiny",
)


def _sequence(cache: KvCache, length: int) -> Sequence:
    """All of whose keys and values are there."""
    sequence = Sequence.of(Request("r", 0, (1,) * length, SamplingParams()), 256)
    sequence.num_cached = length - 1
    sequence.pages = cache.pages.allocate(cache.pages_for(length + 1))
    for position in range(length):
        page, offset = sequence.pages[position // PAGE_SIZE], position % PAGE_SIZE
        cache.pool[page, :, :, offset] = torch.randn(cache.pool[page, :, :, offset].shape)
    return sequence


@pytest.mark.skipif(torch.cuda.is_available(), reason="the same runs on the GPU")
def test_decodes_of_one_step_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(triton_decode, "num_programs", lambda *_: 5)
    cpu = torch.device("cpu")
    cache = KvCache(MODEL, num_pages=80, page_size=PAGE_SIZE, dtype=torch.float32, device=cpu)
    cache.pool[:-1].fill_(torch.nan)
    shape = StepShape(0, 4)
    decode = triton_decode.TritonDecode(cache, MODEL, 4, triton_decode.TritonDecodeWorkspace(cache, MODEL))
    for lengths in ([], [41, 1, 6], [3, 90, 17, 16]):
        step = StepPlan(None, tuple(_sequence(cache, length) for length in lengths))
        runs = lay_out_pages(step, shape, page_size=PAGE_SIZE, null_page=cache.null_page).decodes
        assert runs
        decode.plan(runs)
        q, out = torch.randn(4, HEADS, HEAD_DIM), torch.empty(4, HEADS, HEAD_DIM)
        decode.run(1, q, out)
        for row, (sequence, length) in enumerate(zip(step.decodes, lengths, strict=True)):
            k, v = (
                side[sequence.pages].flatten(0, 1)[:length].repeat_interleave(HEADS // KV_HEADS, 1)
                for side in cache.layer(1)
            )
            weights = (torch.einsum("hd,thd->ht", q[row], k) / HEAD_DIM**0.5).softmax(-1)
            torch.testing.assert_close(out[row], torch.einsum("ht,thd->hd", weights, v), atol=1e-5, rtol=1e-5)
