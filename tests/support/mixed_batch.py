"""A batch in which everything is mixed: prefill and decodes, adapters of many ranks and none, all ways to sample."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.engine import Engine
from punica_serve.models.collectives import SINGLE_RANK, Collectives
from punica_serve.protocol import AdapterRef, Request, SamplingParams, TokenLogprobs

NUM_TOKENS = 6
_DEADLINE_S = 60.0
_TOLERANCE = 2e-4
_RANKS = (4, 8, 12, 64)

#: Requests' token ids and what they were told of probabilities.
Answers = dict[str, list[tuple[int, TokenLogprobs | None]]]


def write_adapters(folder: Path, model: ModelConfig) -> list[AdapterRef]:
    """Random adapters of several ranks on all linear modules, strong enough to change what the model says.

    One updates the embedding and the head, too.
    """
    refs = []
    for rank in _RANKS:
        modules = tuple(model.spec.lora_shapes if rank == 12 else model.linear_shapes)
        write_random_adapter(folder / f"{rank}", model, rank=rank, seed=rank, scale=0.5, target_modules=modules)
        refs.append(read_adapter(folder / f"{rank}", model))
    return refs


def mixed_requests(refs: Sequence[AdapterRef], vocab_size: int) -> list[Request]:
    """Rows of the base and of each adapter, greedy and sampled in all ways; one prompt takes several chunks."""
    ways: list[dict[str, Any]] = [
        {"temperature": 0.0, "logprobs": 3},
        {"temperature": 1.0, "logprobs": 0},
        {"temperature": 0.8, "top_k": 5},
        {"temperature": 1.3, "top_p": 0.7, "min_p": 0.01},
        {"temperature": 0.0, "repetition_penalty": 1.4, "presence_penalty": 0.3, "min_tokens": 3},
        {"temperature": 0.7, "frequency_penalty": 0.9, "logprobs": 2},
    ]
    owners: list[AdapterRef | None] = [None, *refs, *[None] * (len(ways) - len(refs) - 1)]
    requests = []
    for number, (way, ref) in enumerate(zip(ways, owners, strict=True)):
        params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=number % 2 == 0, seed=(1 << 63) + number, **way)
        prompt = tuple((7 + 31 * number + 13 * index) % vocab_size for index in range(3 + 9 * (number == 2) + number))
        requests.append(Request(f"{number}", number, prompt, params, ref))
    return requests


def serve(
    model: Path,
    refs: Sequence[AdapterRef],
    collectives: Collectives = SINGLE_RANK,
    *,
    device: str = "cpu",
    requests: Sequence[Request] | None = None,
    **settings: Any,
) -> Answers:
    """Answers of a rank's engine to all requests together, by default the mixed ones, once the adapters are there."""
    defaults = {"dtype": "float32", "page_size": 4, "num_kv_pages": 64, "num_lora_pages": 16}
    config = EngineConfig(model=model, prefill_budget_tokens=8, lora_vocabulary=True, **{**defaults, **settings})
    engine = Engine(config, device, collectives=collectives)
    try:
        _load(engine, refs)
        if requests is None:
            requests = mixed_requests(refs, read_model_config(model).vocab_size)
        for request in requests:
            engine.add(request)
        answers: Answers = {request.request_id: [] for request in requests}
        while engine.num_requests:
            output = engine.step()
            assert not output.failures
            for token in output.tokens:
                answers[token.request_id].append((token.token_id, token.logprobs))
        engine.check_invariants()
        return answers
    finally:
        engine.close()


def assert_same(answers: Answers, expected: Answers) -> None:
    """Equal tokens, and probabilities within float32's tolerance."""
    for request_id, tokens in expected.items():
        assert [token for token, _ in answers[request_id]] == [token for token, _ in tokens], request_id
        for (_, logprobs), (_, others) in zip(answers[request_id], tokens, strict=True):
            if logprobs is None or others is None:
                assert logprobs is others
                continue
            assert logprobs.top_ids == others.top_ids
            assert (logprobs.logprob, *logprobs.top_logprobs) == pytest.approx(
                (others.logprob, *others.top_logprobs), abs=_TOLERANCE
            )


def _load(engine: Engine, refs: Sequence[AdapterRef]) -> None:
    """Loads all adapters first, so that the plans of all ranks are the same."""
    for ref in refs:
        engine.prefetch(ref)
    deadline_s = time.monotonic() + _DEADLINE_S
    while missing := {ref.digest for ref in refs} - set(engine.resident_adapters):
        assert time.monotonic() < deadline_s, f"not loaded: {missing}"
        engine.step()
        engine.wait(0.1)
