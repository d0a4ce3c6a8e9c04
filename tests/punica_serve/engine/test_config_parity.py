"""One checkpoint under generated config.json files: our logits are transformers', or the file is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from config_files import CONFIG_FILES, SHAPE
from examples import examples
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.adapters.host_loader import no_fetch
from punica_serve.engine.engine import Engine
from punica_serve.errors import ModelRejected
from punica_serve.protocol import Request, SamplingParams
from transformers_oracle import RefusedByTransformers, load_llama

PROMPT = tuple(range(1, 40))
VOCAB_SIZE = SHAPE["vocab_size"]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(3)
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(folder)
    return folder


def _our_logprobs(engine: Engine) -> tuple[list[int], Tensor]:
    """The answer, and the log-probabilities of the vocabulary at each of its tokens."""
    params = SamplingParams(max_tokens=3, ignore_eos=True, logprobs=VOCAB_SIZE)
    engine.add(Request("r", 0, PROMPT, params))
    answer, rows = [], []
    while engine.num_requests:
        for token in engine.step().tokens:
            assert token.logprobs is not None
            row = torch.empty(VOCAB_SIZE)
            row[list(token.logprobs.top_ids)] = torch.tensor(token.logprobs.top_logprobs)
            answer.append(token.token_id)
            rows.append(row)
    return answer, torch.stack(rows)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(file=CONFIG_FILES)
@example(file={**SHAPE, "rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": LLAMA3})
@example(file={**SHAPE, "rope_parameters": LLAMA3, "original_max_position_embeddings": 16})
def test_logits_are_transformers(file: dict[str, Any], checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text(json.dumps(file))
    try:
        theirs = load_llama(checkpoint)
        config = EngineConfig(model=checkpoint, dtype="float32", page_size=16, num_kv_pages=16, num_lora_pages=8)
        engine = Engine(config, "cpu", no_fetch)
    except (RefusedByTransformers, ModelRejected):
        assume(False)
    try:
        answer, ours = _our_logprobs(engine)
    finally:
        engine.close()
    with torch.inference_mode():
        logits: Tensor = theirs(torch.tensor([[*PROMPT, *answer[:-1]]])).logits
    expected = logits[0, len(PROMPT) - 1 :].log_softmax(-1)
    torch.testing.assert_close(ours, expected, atol=2e-4, rtol=1e-4)
