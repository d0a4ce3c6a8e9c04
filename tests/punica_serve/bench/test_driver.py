"""Policies as pure decisions, and the driver on a tiny model: every token counted, every step timed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.bench.driver import MaxConcurrency, Policy, SameAdapterOnly, StaticBatches, drive, preload
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.engine import Engine
from punica_serve.engine.step_output import StepOutput
from punica_serve.errors import RequestFailed
from punica_serve.protocol import AdapterRef, Request, SamplingParams


def _requests(adapters: str, outputs: list[int] | None = None) -> list[Request]:
    """One for each letter, which is its adapter."""
    refs = {letter: AdapterRef(letter, "", 0, {"q_proj": 8}) for letter in adapters}
    lengths = outputs or [3] * len(adapters)
    return [
        Request(f"{number}", number, (1, 2, 3), SamplingParams(max_tokens=length, ignore_eos=True), refs[letter])
        for number, (letter, length) in enumerate(zip(adapters, lengths, strict=True))
    ]


def _play(policy: Policy, lengths: list[int]) -> list[str]:
    """Who runs in each step, when request number i takes ``lengths[i]`` steps."""
    left: dict[str, int] = {}
    steps: list[str] = []
    while True:
        left.update({request.request_id: lengths[int(request.request_id)] for request in policy.due(len(left))})
        if not left:
            return steps
        steps.append("".join(left))
        left = {name: count - 1 for name, count in left.items() if count > 1}


def test_in_flight_keeps_as_many_as_its_limit() -> None:
    assert _play(MaxConcurrency(_requests("abcd"), limit=2), [1, 3, 1, 1]) == ["01", "12", "13"]
    assert _play(MaxConcurrency(_requests("abcd")), [1, 1, 1, 1]) == ["0123"]


def test_a_static_batch_ends_with_its_longest() -> None:
    assert _play(StaticBatches(_requests("abcde"), 2), [1, 3, 1, 1, 1]) == ["01", "1", "1", "23", "4"]


def test_same_adapter_only_never_mixes_and_never_overtakes() -> None:
    steps = _play(SameAdapterOnly(_requests("aaabaa"), 2), [1, 2, 2, 1, 1, 1])
    assert steps == ["01", "12", "2", "3", "45"]


@pytest.fixture
def engine(tiny_llama: Path) -> Iterator[Engine]:
    config = EngineConfig(model=tiny_llama, dtype="float32", num_kv_pages=64, num_lora_pages=4, cpu_threads=1)
    engine = Engine(config)
    yield engine
    engine.close()


def test_every_token_and_every_step_is_counted(engine: Engine) -> None:
    params = [SamplingParams(max_tokens=count, ignore_eos=True) for count in (2, 5)]
    requests = [Request(f"{number}", number, (1, 2, 3), each) for number, each in enumerate(params)]
    outputs: list[StepOutput] = []
    times = drive(engine, MaxConcurrency(requests), outputs.append)
    assert times.num_tokens == 7
    # One prefill each, the second beside a decode; then decodes of a context that grows by one.
    assert [step.num_prefill_tokens for step in times.steps] == [3, 3, 0, 0, 0, 0]
    assert [step.num_context_tokens for step in times.decode_steps] == [4, 5, 6, 7]
    assert [step.batch_size for step in times.steps] == [1, 2, 1, 1, 1, 1]
    assert 0 < sum(step.duration_s for step in times.steps) <= times.seconds
    assert times.tokens_per_s == 7 / times.seconds
    assert sum(len(output.tokens) for output in outputs) == 7


def test_a_request_that_fails_is_no_measurement(engine: Engine, tiny_model: ModelConfig, tmp_path: Path) -> None:
    ref = read_adapter(write_random_adapter(tmp_path, tiny_model, rank=8, seed=0), tiny_model)
    (tmp_path / "adapter_config.json").write_text("{}")
    request = Request("0", 0, (1,), SamplingParams(max_tokens=1), ref)
    with pytest.raises(RequestFailed, match=r"a request of the benchmark failed: .*changed on disk"):
        drive(engine, MaxConcurrency([request]), lambda _: None)


def test_brought_adapters_are_on_the_device(engine: Engine, tiny_model: ModelConfig, tmp_path: Path) -> None:
    folders = [write_random_adapter(tmp_path / f"{seed}", tiny_model, rank=8, seed=seed) for seed in range(3)]
    refs = [read_adapter(folder, tiny_model) for folder in folders]
    preload(engine, refs)
    assert set(engine.resident_adapters) == {ref.digest for ref in refs}
    with pytest.raises(RequestFailed, match="not on the device after 0 s"):
        preload(engine, refs, deadline_s=0.0)
    assert engine.num_requests == 0, "or the next ones would wait behind them"
