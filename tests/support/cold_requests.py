"""Requests whose adapters are not on the device, for tests of how they start."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.engine.adapters.copy_batch import CopyBatch
from punica_serve.engine.adapters.layer_arrival import layer_groups
from punica_serve.engine.engine import Engine
from punica_serve.engine.step_output import Failure
from punica_serve.protocol import AdapterRef, Request, SamplingParams
from waits import DEADLINE_S

#: Layers of the model: one group of them has two.
NUM_LAYERS = 9
NUM_GROUPS = 8

#: One architecture of each kind: plain, with norms behind the blocks and soft caps, with fused modules.
_MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma2": {"head_dim": 16, "sliding_window": 6, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0},
    "phi3": {"sliding_window": 9},
}
#: Parameters of a fixture: all but Llama are in the slow tier.
MODEL_TYPES = [pytest.param(name, marks=[pytest.mark.slow] if name != "llama" else []) for name in _MODELS]


def cold_model(make_model: Callable[..., Path], model_type: str) -> Path:
    return make_model(model_type, num_hidden_layers=NUM_LAYERS, **_MODELS[model_type])


def cold_adapters(model: Path, folder: Path, count: int) -> list[AdapterRef]:
    """Random adapters, strong enough to change what the model says."""
    config, refs = read_model_config(model), []
    for seed in range(count):
        (own := folder / f"{seed}").mkdir()
        write_random_adapter(own, config, rank=12, seed=seed, scale=0.5)
        refs.append(read_adapter(own, config))
    return refs


def cold_request(name: str, ref: AdapterRef | None, num_prompt_tokens: int = 10, max_tokens: int = 6) -> Request:
    prompt = tuple(1 + number * 7 % 90 for number in range(num_prompt_tokens))
    return Request(name, 0, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=3), ref)


def run_requests(engine: Engine, *requests: Request) -> tuple[dict[str, list[int]], list[Failure]]:
    """The tokens of each request, and the failures."""
    for request in requests:
        engine.add(request)
    return finish_requests(engine)


def finish_requests(engine: Engine) -> tuple[dict[str, list[int]], list[Failure]]:
    """Runs the engine until no request is left: the tokens of each from now on, and the failures."""
    tokens: dict[str, list[int]] = {}
    failures: list[Failure] = []
    deadline_s = time.monotonic() + DEADLINE_S
    while engine.num_requests:
        assert time.monotonic() < deadline_s, "the engine makes no progress"
        output = engine.step()
        engine.check_invariants()
        failures += output.failures
        for token in output.tokens:
            tokens.setdefault(token.request_id, []).append(token.token_id)
        if not output.has_run:
            engine.wait(0.1)
    return tokens, failures


def hold_copies(monkeypatch: pytest.MonkeyPatch, device: str, before: Callable[[int], object]) -> None:
    """Calls a function before the copies of each group of layers are queued, on the thread that copies."""
    method = "copy" if device == "cpu" else "queue"
    copy = getattr(CopyBatch, method)
    starts = [layers.start for layers in layer_groups(NUM_LAYERS)]

    def held(batch: CopyBatch, layers: slice, *stream: Any) -> None:
        before(starts.index(layers.start))
        copy(batch, layers, *stream)

    monkeypatch.setattr(CopyBatch, method, held)


def evict(engine: Engine, *refs: AdapterRef) -> None:
    """Makes adapters cold again, but for the page cache."""
    for ref in refs:
        engine.evict(ref.digest)
        assert ref.digest not in engine.host_cache and ref.digest not in engine.resident_adapters
