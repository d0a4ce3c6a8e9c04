"""Contexts of many windows: the tokens and logits of transformers, for every architecture that has windows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine_fixtures import MakeEngine
from punica_serve.protocol import Request, SamplingParams

#: The windows of layers are odd, so that none ends with a page.
MODELS: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 13},
    "phi3": {"sliding_window": 21},
    "qwen2": {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 1},
    "qwen3": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0, "head_dim": 16},
    "gemma2": {
        **{"sliding_window": 15, "head_dim": 16, "query_pre_attn_scalar": 24},
        **{"attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0},
    },
    "gemma3_text": {
        **{"sliding_window": 7, "head_dim": 16, "query_pre_attn_scalar": 20},
        "layer_types": ["sliding_attention", "full_attention"],
    },
}
#: Those all of whose layers have a window.
GIVING_BACK = {"mistral", "phi3", "qwen3"}
NUM_PROMPT, MAX_TOKENS, VOCAB_SIZE = 230, 20, 97


@pytest.mark.parametrize("model_type", MODELS)
def test_contexts_of_many_windows_say_what_transformers_says(
    model_type: str, make_model: Callable[..., Path], make_engine: MakeEngine
) -> None:
    folder = make_model(model_type, **MODELS[model_type])
    num_pages = 12 if model_type in GIVING_BACK else 64
    engine = make_engine(folder, prefill_budget_tokens=24, num_kv_pages=num_pages)
    prompt = tuple(place * place % VOCAB_SIZE for place in range(NUM_PROMPT))
    engine.add(Request("r", 0, prompt, SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, logprobs=VOCAB_SIZE)))
    tokens: list[int] = []
    rows = torch.empty(MAX_TOKENS, VOCAB_SIZE)
    while engine.num_requests:
        for token in engine.step().tokens:
            assert token.logprobs is not None
            rows[len(tokens), list(token.logprobs.top_ids)] = torch.tensor(token.logprobs.top_logprobs)
            tokens.append(token.token_id)
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        logits = oracle(torch.tensor([[*prompt, *tokens[:-1]]])).logits
    expected = logits[0, NUM_PROMPT - 1 :].log_softmax(-1)
    assert tokens == expected.argmax(-1).tolist()
    torch.testing.assert_close(rows, expected, atol=2e-4, rtol=1e-3)
