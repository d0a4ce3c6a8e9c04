"""Activated adapters (aLoRA) against PEFT: rows before the last invocation are the base model's."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from engine_fixtures import MakeEngine
from punica_serve.adapters.folder import read_adapter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.engine.engine import Engine
from punica_serve.errors import AdapterRejected
from punica_serve.protocol import AdapterRef, Request, SamplingParams

INVOCATION = (7, 9, 7)
MAX_TOKENS = 8
#: Where the adapter is invoked: nowhere, from the start, in the middle, last of two that overlap, and at the end.
PROMPTS = (
    (5, 17, 2, 40, 33, 7, 9),
    (*INVOCATION, 4, 44, 12),
    (31, 8, 60, 2, 11, *INVOCATION, 3, 52),
    (3, 7, 9, 7, 9, 7, 21, 64, 30),
    (12, 80, 3, *INVOCATION),
)


@pytest.fixture(scope="module")
def adapter(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    base = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    targets = ["q_proj", "v_proj", "o_proj", "down_proj"]
    config = LoraConfig(task_type="CAUSAL_LM", target_modules=targets, alora_invocation_tokens=list(INVOCATION))
    model = get_peft_model(base, config)
    for name, tensor in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(tensor, std=0.2)
    model.save_pretrained(folder := tmp_path_factory.mktemp("alora"))
    return folder


@pytest.fixture(scope="module")
def ref(adapter: Path, tiny_llama: Path) -> AdapterRef:
    return read_adapter(adapter, read_model_config(tiny_llama))


def _answers(engine: Engine, requests: list[Request]) -> list[tuple[int, ...]]:
    for request in requests:
        engine.add(request)
    answers: dict[str, list[int]] = {request.request_id: list(request.generated_ids) for request in requests}
    while engine.num_requests:
        output = engine.step()
        for token in output.tokens:
            answers[token.request_id].append(token.token_id)
        if not output.has_run:
            engine.wait(0.1)
    return [tuple(answer) for answer in answers.values()]


def _requests(ref: AdapterRef | None, *generated: tuple[int, ...]) -> list[Request]:
    params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
    given = generated or ((),) * len(PROMPTS)
    return [Request(f"{n}", n, prompt, params, ref, given[n]) for n, prompt in enumerate(PROMPTS)]


def test_answers_are_pefts(
    tiny_llama: Path, adapter: Path, ref: AdapterRef, make_engine: MakeEngine, load: Callable[..., None]
) -> None:
    """In chunks of 4 rows, which cut invocations, and mixed with decodes."""
    assert ref.invocation == INVOCATION
    engine = make_engine(tiny_llama, prefill_budget_tokens=4)
    load(engine, [ref])
    base = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    peft = PeftModel.from_pretrained(base, adapter).eval()
    for prompt, answer in zip(PROMPTS, _answers(engine, _requests(ref)), strict=True):
        with torch.inference_mode():
            logits = peft(torch.tensor([[*prompt, *answer[:-1]]])).logits[0, len(prompt) - 1 :]
        assert answer == tuple(logits.argmax(-1).tolist()), prompt


def test_an_adapter_that_is_not_invoked_says_what_the_base_says(
    tiny_llama: Path, ref: AdapterRef, make_engine: MakeEngine
) -> None:
    own, base = (_answers(make_engine(tiny_llama), _requests(each)) for each in (ref, None))
    assert own[0] == base[0] and own[1:] != base[1:]


def test_a_request_that_moves_is_invoked_where_it_was(
    tiny_llama: Path, ref: AdapterRef, make_engine: MakeEngine
) -> None:
    """Even if it has generated the invocation since."""
    engine = make_engine(tiny_llama)
    answers = _answers(engine, _requests(ref))
    for cut in (1, 5):
        assert _answers(engine, _requests(ref, *(answer[:cut] for answer in answers))) == answers


def test_pages_before_the_invocation_are_shared_with_the_base(
    tiny_llama: Path, ref: AdapterRef, make_engine: MakeEngine
) -> None:
    engine = make_engine(tiny_llama, page_size=2, prefix_caching=True)
    prompt = (31, 8, 60, 2, 11, *INVOCATION, 3, 52)
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    alone = _answers(make_engine(tiny_llama), [Request("a", 0, prompt, params, ref)])
    _answers(engine, [Request("base", 0, prompt, params)])
    before = engine.prefix_tokens[1]
    assert _answers(engine, [Request("a", 0, prompt, params, ref)]) == alone
    assert engine.prefix_tokens[1] - before == 4, "two pages lie before the invocation at 5"


def test_an_invocation_outside_the_vocabulary_is_refused(adapter: Path, tiny_llama: Path, tmp_path: Path) -> None:
    for path in adapter.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = tmp_path / "adapter_config.json"
    config.write_text(config.read_text().replace('"alora_invocation_tokens": [', '"alora_invocation_tokens": [97,'))
    with pytest.raises(AdapterRejected, match="`alora_invocation_tokens` holds token id 97, which is outside"):
        read_adapter(tmp_path, read_model_config(tiny_llama))
