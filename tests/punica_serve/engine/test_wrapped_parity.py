"""A model that also sees images, served as text, with an adapter that was trained on it: the tokens are PEFT's."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from engine_fixtures import MakeEngine
from punica_serve.adapters.folder import read_adapter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.protocol import Request, SamplingParams

#: PEFT warns of embeddings that are tied.
pytestmark = pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")

PROMPTS = ((5, 17, 2, 40, 33), (9,), tuple(range(3, 30)))
TEXT = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "head_dim": 16}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 7, "initializer_range": 0.3}
VISION = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
TARGETS = r"model\.language_model\..*\.(q_proj|o_proj|down_proj)|lm_head"


def _wrapper(folder: Path) -> Gemma3ForConditionalGeneration:
    torch.manual_seed(4)
    vision = {**VISION, "image_size": 28, "patch_size": 14}
    config = Gemma3Config(text_config={**TEXT, **HEADS, "eos_token_id": 0}, vision_config=vision, eos_token_id=0)
    model = Gemma3ForConditionalGeneration(config).eval()
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    return model


def test_text_of_a_wrapped_model_is_pefts(tmp_path: Path, make_engine: MakeEngine, load: Callable[..., None]) -> None:
    peft = get_peft_model(_wrapper(tmp_path / "base"), LoraConfig(r=6, lora_alpha=9, target_modules=TARGETS))
    for name, tensor in peft.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(tensor, std=0.2)
    peft.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    ref = read_adapter(tmp_path / "adapter", read_model_config(tmp_path / "base"))
    engine = make_engine(tmp_path / "base", prefill_budget_tokens=8, lora_vocabulary=True)
    load(engine, [ref])
    answers: dict[str, list[int]] = {}
    for number, prompt in enumerate(PROMPTS):
        answers[str(number)] = []
        engine.add(Request(f"{number}", number, prompt, SamplingParams(max_tokens=10, ignore_eos=True), ref))
    while engine.num_requests:
        for token in engine.step().tokens:
            answers[token.request_id].append(token.token_id)
    for prompt, answer in zip(PROMPTS, answers.values(), strict=True):
        with torch.inference_mode():
            logits = peft(input_ids=torch.tensor([[*prompt, *answer[:-1]]])).logits[0, len(prompt) - 1 :]
        assert answer == logits.argmax(-1).tolist()
