"""A model that also sees images, served as text, with an adapter that was trained on it: the tokens are PEFT's."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model

from engine_fixtures import MakeEngine
from punica_serve.adapters.folder import read_adapter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.protocol import Request, SamplingParams
from wrapped_models import WRAPPERS, save_wrapped_model

#: PEFT warns of embeddings that are tied.
pytestmark = pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")

PROMPTS = ((5, 17, 2, 40, 33), (9,), tuple(range(3, 30)))
TARGETS = r"model\.language_model\..*\.(q_proj|o_proj|down_proj)|lm_head"


@pytest.mark.parametrize("model_type", WRAPPERS)
def test_text_of_a_wrapped_model_is_pefts(
    tmp_path: Path, make_engine: MakeEngine, load: Callable[..., None], model_type: str
) -> None:
    base = save_wrapped_model(tmp_path / "base", model_type)
    peft = get_peft_model(base, LoraConfig(r=6, lora_alpha=9, target_modules=TARGETS))
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
