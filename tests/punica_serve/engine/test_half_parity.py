"""Parity in bfloat16 of every architecture, with heads of real models: log-probabilities beside transformers and PEFT.

As in `test_parity_1b`, the yardstick is how far transformers and PEFT are in bfloat16 from themselves in float32.
Prompts reach beyond every window and beyond LongRoPE's first context.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine_fixtures import MakeEngine
from punica_serve.adapters.folder import read_adapter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.engine.cuda.attention_backend import fa3_modules
from punica_serve.engine.cuda.flashinfer_modules import why_not
from punica_serve.engine.engine import Engine
from punica_serve.protocol import AdapterRef, Request, SamplingParams

#: How far from float32 we may be, in root mean squares of transformers' and PEFT's own distance.
WORST_MEAN = 1.5
#: How much nearer to its own adapter than to none an answer must be for all this to prove anything.
LEAST_EFFECT = 10.0
VOCAB_SIZE, MAX_TOKENS, NUM_LOGPROBS = 97, 8, 5
PROMPT_LENGTHS = (5, 90, 33, 150, 1, 64, 17, 120)

#: Heads of 64, 96, 128 and 256, in groups of one, two, three and four for each key-value head.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 384, "num_attention_heads": 6},
    "mistral": {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 128, "sliding_window": 50},
    "qwen2": {
        **{"hidden_size": 384, "num_attention_heads": 4, "use_sliding_window": True},
        **{"sliding_window": 40, "max_window_layers": 1},
    },
    "qwen3": {"num_attention_heads": 4, "head_dim": 128},
    "gemma": {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 256},
    "gemma2": {
        **{"num_attention_heads": 2, "head_dim": 256, "query_pre_attn_scalar": 224, "sliding_window": 41},
        **{"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    },
    "gemma3_text": {
        **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 256, "query_pre_attn_scalar": 256},
        **{"sliding_window": 33, "layer_types": ["sliding_attention", "full_attention"]},
    },
    "phi3": {
        **{"hidden_size": 384, "num_attention_heads": 4, "partial_rotary_factor": 0.5, "sliding_window": 60},
        **{"max_position_embeddings": 256, "original_max_position_embeddings": 64},
        "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 24, "long_factor": [2.0, 4.0] * 12},
    },
}


@dataclass(frozen=True)
class _World:
    folder: Path
    ref: AdapterRef
    #: transformers and PEFT in float32, and in bfloat16.
    exact: PeftModel
    rounded: PeftModel


def _world(folder: Path, adapter: Path) -> _World:
    """All models have the same weights, rounded to bfloat16."""
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager").float()
    model = read_model_config(folder)
    targets = ["qkv_proj", "down_proj"] if model.fused_projections else ["q_proj", "k_proj", "down_proj"]
    exact = get_peft_model(plain, LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=16, target_modules=targets))
    for name, tensor in exact.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(tensor, std=tensor.shape[1] ** -0.5 if "lora_A" in name else 0.3)
            tensor.data = tensor.data.bfloat16().float()
    exact.save_pretrained(adapter)
    rounded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager")
    rounded = PeftModel.from_pretrained(rounded, adapter, autocast_adapter_dtype=False)
    return _World(folder, read_adapter(adapter, model), exact.eval(), rounded.eval())


def _scores(model: PeftModel, ids: tuple[int, ...], num_tokens: int, *, with_adapter: bool) -> Tensor:
    """Log-probabilities of the last tokens' whole vocabulary: float32 [num_tokens, vocab]."""
    with torch.inference_mode():
        if with_adapter:
            logits = model(torch.tensor([ids[:-1]])).logits
        else:
            with model.disable_adapter():
                logits = model(torch.tensor([ids[:-1]])).logits
    scores: Tensor = logits[0, -num_tokens:].float().log_softmax(-1)
    return scores


def _answers(engine: Engine, requests: list[Request]) -> dict[str, list[Any]]:
    drawn: dict[str, list[Any]] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.add(request)
    while engine.num_requests:
        output = engine.step()
        for token in output.tokens:
            drawn[token.request_id].append(token)
        if not output.has_run:
            engine.wait(1.0)
    return drawn


def _requests(ref: AdapterRef) -> list[Request]:
    params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, logprobs=NUM_LOGPROBS)
    return [
        Request(
            f"{number}",
            number,
            tuple((number * 31 + place * 7 + place * place) % VOCAB_SIZE for place in range(length)),
            params,
            ref if number % 2 else None,
        )
        for number, length in enumerate(PROMPT_LENGTHS)
    ]


def _rms(errors: list[Tensor]) -> float:
    return float(torch.cat(errors).square().mean().sqrt())


def _skip_without_flashinfer(folder: Path) -> None:
    for module in fa3_modules(read_model_config(folder), torch.bfloat16):
        if reason := why_not(module, torch.device("cuda")):
            pytest.skip(reason)


ON_CPU = [("cpu", "auto", model_type) for model_type in MODELS]
#: With FlashInfer only models whose kernels its other tests compile too.
ON_GPU = [("cuda", "triton", model_type) for model_type in MODELS]
ON_GPU += [("cuda", "flashinfer", model_type) for model_type in ("mistral", "qwen3")]


@pytest.mark.timeout(600)  # Triton compiles its kernels the first time
@pytest.mark.parametrize(
    ("device", "attention", "model_type"),
    [*ON_CPU, *[pytest.param(*each, marks=pytest.mark.gpu) for each in ON_GPU]],
)
def test_log_probabilities_are_as_near_to_float32_as_those_of_transformers_and_peft(
    model_type: str,
    device: str,
    attention: str,
    make_model: Callable[..., Path],
    make_engine: MakeEngine,
    tmp_path: Path,
) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 384, "initializer_range": 0.08}
    world = _world(make_model(model_type, **{**sizes, **MODELS[model_type]}), tmp_path / "adapter")
    if attention == "flashinfer":
        _skip_without_flashinfer(world.folder)
    settings = {"max_batch_size": 8, "page_size": 16, "num_kv_pages": 256, "prefill_budget_tokens": 64}
    engine = make_engine(world.folder, device, dtype="bfloat16", attention=attention, **settings)
    ours, theirs, effects = [], [], []
    requests = _requests(world.ref)
    answers = _answers(engine, requests)
    for request in requests:
        tokens, with_adapter = answers[request.request_id], request.adapter is not None
        ids = (*request.prompt_ids, *(token.token_id for token in tokens))
        top_ids = torch.tensor([token.logprobs.top_ids for token in tokens])
        exact, rounded = (
            _scores(model, ids, MAX_TOKENS, with_adapter=with_adapter).gather(1, top_ids)
            for model in (world.exact, world.rounded)
        )
        ours.append(torch.tensor([token.logprobs.top_logprobs for token in tokens]) - exact)
        theirs.append(rounded - exact)
        if with_adapter:
            effects.append(_scores(world.exact, ids, MAX_TOKENS, with_adapter=False).gather(1, top_ids) - exact)
    told = f"rms error of log-probabilities: ours {_rms(ours):.4f}, transformers' and PEFT's {_rms(theirs):.4f}"
    print(f"{model_type}: {told}, effect of the adapter {_rms(effects):.3f}")  # noqa: T201
    assert _rms(ours) <= WORST_MEAN * _rms(theirs)
    assert _rms(effects) >= LEAST_EFFECT * _rms(ours), "the adapter does too little"
