"""Parity with transformers and PEFT: the same tokens and logits for every adapter, however requests share batches.

One engine runs requests of all adapters and of the base together, with prefills and decodes mixed in its steps. The
oracle scores each answer alone, through PEFT: it is the greedy one if each of its tokens is the most likely after those
before it.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from punica_serve.adapters.folder import read_adapter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.engine.engine import Engine
from punica_serve.protocol import AdapterRef, Request, SamplingParams

#: PEFT warns of embeddings that are tied.
pytestmark = pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")

NUM_LAYERS = 3
MAX_TOKENS = 12

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

#: Mixed ranks, alphas, rslora, patterns and targets: one of each meaning that PEFT can give an adapter. No name is a
#: module's: PEFT would save no other adapter's tensors below that.
VARIANTS: dict[str, dict[str, Any]] = {
    "all": {"r": 8, "lora_alpha": 16, "target_modules": ALL},
    "attention": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    "gate_and_down": {"r": 16, "lora_alpha": 4, "target_modules": ["gate_proj", "down_proj"]},
    "rslora": {"r": 32, "lora_alpha": 8, "use_rslora": True, "target_modules": ALL},
    "one": {"r": 1, "lora_alpha": 3, "target_modules": ["o_proj"]},
    "odd": {"r": 5, "lora_alpha": 7, "target_modules": "all-linear"},
    "ranks": {
        "r": 8,
        "lora_alpha": 8,
        "target_modules": ALL,
        "rank_pattern": {"q_proj": 24, r"layers.1.mlp.up_proj": 2},
    },
    "alphas": {
        "r": 8,
        "lora_alpha": 8,
        "use_rslora": True,
        "target_modules": ALL,
        "rank_pattern": {"down_proj": 12},
        "alpha_pattern": {"down_proj": 30, "k_proj": 1},
    },
    "high": {"r": 256, "lora_alpha": 60, "target_modules": ["q_proj", "up_proj", "lm_head"]},
    "vocabulary": {"r": 5, "lora_alpha": 10, "target_modules": ["embed_tokens", "lm_head", "o_proj"]},
    "embedding": {"r": 12, "lora_alpha": 6, "use_rslora": True, "target_modules": ["embed_tokens"]},
    "head": {"r": 3, "lora_alpha": 6, "target_modules": ["lm_head", "1.self_attn.o_proj"]},
    "two_layers": {"r": 64, "lora_alpha": 32, "target_modules": ["up_proj", "k_proj"], "layers_to_transform": [0, 2]},
    "regex": {"r": 6, "lora_alpha": 12, "target_modules": r".*\.(1|2)\.self_attn\.(q|o)_proj"},
}

BASES: dict[str, dict[str, Any]] = {
    "grouped": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "multi_head": {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": True},
    "multi_query": {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16},
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 5000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
    "mistral": {"model_type": "mistral", "sliding_window": None},
    # Prompts and answers of 28 tokens go far beyond a window of 5, also one that is no multiple of a page.
    "mistral_window": {"model_type": "mistral", "sliding_window": 5},
    "phi3": {"model_type": "phi3", "sliding_window": 5, "num_key_value_heads": 2},
    # Requests of 13 to 29 tokens, some beyond the first context.
    "phi3_longrope": {
        **{"model_type": "phi3", "num_key_value_heads": 2, "partial_rotary_factor": 0.5},
        **{"max_position_embeddings": 64, "original_max_position_embeddings": 20},
        "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [3.0, 7.0]},
    },
    "gemma": {"model_type": "gemma", "head_dim": 16, "num_key_value_heads": 1},
    "gemma2": {
        "model_type": "gemma2",
        **{"sliding_window": 6, "head_dim": 16, "query_pre_attn_scalar": 24},
        **{"attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0},
    },
    "gemma3": {
        "model_type": "gemma3_text",
        **{"sliding_window": 7, "head_dim": 16, "query_pre_attn_scalar": 20},
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 7000.0, "factor": 2.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 90.0},
        },
    },
    "qwen2_window": {
        "model_type": "qwen2",
        **{"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    },
    "qwen2": {
        "model_type": "qwen2",
        "tie_word_embeddings": True,
        "rope_parameters": {
            **{"rope_type": "yarn", "rope_theta": 5000.0},
            **{"factor": 4.0, "original_max_position_embeddings": 16},
        },
    },
    # A group of three heads for each key-value head, and heads wider than the hidden size's share.
    "qwen3": {"model_type": "qwen3", "num_attention_heads": 6, "head_dim": 16},
}


def _variants_of(base: str) -> dict[str, dict[str, Any]]:
    """All adapters for Llama and for Phi-3, whose modules are fused; every other one, in turn, for each other base."""
    if base in ("grouped", "phi3"):
        return VARIANTS
    return {name: VARIANTS[name] for name in list(VARIANTS)[list(BASES).index(base) % 2 :: 2]}


@dataclass(frozen=True)
class _World:
    """A base model with all adapters: ours by reference, theirs in memory."""

    folder: Path
    refs: dict[str, AdapterRef]
    peft: PeftModel

    def logprobs(self, adapter: str | None, prompt: tuple[int, ...], generated: list[int]) -> Tensor:
        """Log-probabilities of each token's whole vocabulary, given those before it: [len(generated), vocab]."""
        ids = torch.tensor([[*prompt, *generated[:-1]]])
        with torch.inference_mode():
            if adapter is None:
                with self.peft.disable_adapter():
                    logits = self.peft(ids).logits
            else:
                self.peft.set_adapter(adapter)
                logits = self.peft(ids).logits
        scored: Tensor = logits[0, len(prompt) - 1 :].log_softmax(-1)
        return scored


def _fused(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings for a base with the modules of Phi-3."""
    text = json.dumps(settings).replace("(q|o)", "(qkv|o)")
    text = re.sub(r"\b[qkv]_proj", "qkv_proj", text)
    fused: dict[str, Any] = json.loads(re.sub(r"\b(gate|up)_proj", "gate_up_proj", text))
    if isinstance(targets := fused["target_modules"], list):
        fused["target_modules"] = sorted(set(targets))
    return fused


def _with_adapters(base: Path, variants: dict[str, dict[str, Any]], *, fused: bool) -> PeftModel:
    # Other implementations leave out the soft cap of Gemma 2.
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    configs = {
        name: LoraConfig(task_type="CAUSAL_LM", **(_fused(settings) if fused else settings))
        for name, settings in variants.items()
    }
    first, *others = configs
    model = get_peft_model(plain, configs[first], adapter_name=first)
    for name in others:
        model.add_adapter(name, configs[name])
    torch.manual_seed(7)
    for tensor_name, tensor in model.named_parameters():
        _, is_adapters, rest = tensor_name.partition("lora_")
        if is_adapters:
            torch.nn.init.normal_(tensor, std=0.4 / variants[rest.split(".")[1]]["r"] ** 0.5)
    return model.eval()


@pytest.fixture(scope="module", params=BASES)
def world(
    request: pytest.FixtureRequest, make_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[_World]:
    base = make_model(**{"model_type": "llama", "num_hidden_layers": NUM_LAYERS, **BASES[request.param]})
    adapters = tmp_path_factory.mktemp("adapters")
    model, variants = read_model_config(base), _variants_of(request.param)
    peft = _with_adapters(base, variants, fused=model.fused_projections)
    peft.save_pretrained(adapters, save_embedding_layers=False)
    yield _World(base, {name: read_adapter(adapters / name, model) for name in variants}, peft)


def _prompt(number: int) -> tuple[int, ...]:
    return tuple((number * 31 + 7 * index) % 96 + 1 for index in range(1 + (number * 5) % 17))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_mixed_batches_equal_transformers_and_peft(
    world: _World, make_engine: Callable[..., Engine], load: Callable[..., None], device: str
) -> None:
    engine = make_engine(world.folder, device, prefill_budget_tokens=8, max_lora_rank=256, lora_vocabulary=True)
    load(engine, world.refs.values())
    names = [None, *world.refs, None, *list(world.refs)[::-3]]
    for number, name in enumerate(names):
        params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, logprobs=97)
        ref = world.refs[name] if name else None
        engine.add(Request(f"{number}", number, _prompt(number), params, ref))
    streams: dict[str, list[int]] = {str(number): [] for number in range(len(names))}
    rows: dict[str, list[Tensor]] = {request_id: [] for request_id in streams}
    mixed_steps = most_adapters = 0
    while engine.num_requests:
        output = engine.step()
        mixed_steps += output.num_prefill_tokens > 0 and output.batch_size > 1
        most_adapters = max(most_adapters, output.num_adapters)
        for token in output.tokens:
            assert token.logprobs is not None
            streams[token.request_id].append(token.token_id)
            row = torch.empty(97)
            row[list(token.logprobs.top_ids)] = torch.tensor(token.logprobs.top_logprobs)
            rows[token.request_id].append(row)
        if not output.has_run:
            engine.wait(0.1)
    assert mixed_steps > len(names) / 2 and most_adapters >= min(8, len(world.refs))
    for number, name in enumerate(names):
        tokens = streams[str(number)]
        expected = world.logprobs(name, _prompt(number), tokens)
        assert tokens == expected.argmax(-1).tolist(), f"request {number} of {name}"
        torch.testing.assert_close(torch.stack(rows[str(number)]), expected, atol=2e-4, rtol=1e-4)


def test_every_adapter_changes_the_answer(world: _World) -> None:
    """Else the parity above would prove little."""
    base = world.logprobs(None, _prompt(3), [1])
    for name in world.refs:
        assert (base - world.logprobs(name, _prompt(3), [1])).abs().max() > 0.02, name
