"""The engine from the outside: requests in, tokens out."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import integers, lists, tuples

from engine_fixtures import MakeAdapter, MakeEngine
from engine_runs import request_of, run_all, steps_of
from examples import examples
from punica_serve.engine.engine import Engine
from punica_serve.errors import ConfigError, ModelRejected


def test_a_request_gets_max_tokens_and_its_pages_come_back(make_engine: MakeEngine) -> None:
    engine = make_engine()
    assert len(run_all(engine, request_of("a"))["a"]) == 8
    assert engine.num_free_kv_pages == engine.num_kv_pages


def test_mixed_requests_get_what_each_gets_alone(make_engine: MakeEngine, make_adapter: MakeAdapter) -> None:
    adapters = [None, *(make_adapter(rank=rank, seed=rank) for rank in (4, 8, 20))]
    requests = [
        request_of(f"r{number}", range(3, 5 + 3 * number), adapters[number % 4], number, max_tokens=12)
        for number in range(8)
    ]
    together = run_all(make_engine(), *requests)
    for request in requests:
        assert run_all(make_engine(), request) == {request.request_id: together[request.request_id]}
    assert len({tuple(tokens) for tokens in together.values()}) > 4, "adapters and prompts make a difference"


def test_chunked_prefill_changes_nothing(make_engine: MakeEngine, make_adapter: MakeAdapter) -> None:
    request = request_of("a", range(1, 60), make_adapter())
    whole = run_all(make_engine(prefill_budget_tokens=512), request)
    assert run_all(make_engine(prefill_budget_tokens=7), request) == whole


@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    budget=integers(1, 30),
    max_prefills=integers(2, 6),
    lengths=lists(tuples(integers(1, 25), integers(1, 6)), max_size=8),
)
def test_prefills_that_share_a_step_change_no_token(
    make_engine: MakeEngine, make_adapter: MakeAdapter, budget: int, max_prefills: int, lengths: list[tuple[int, int]]
) -> None:
    adapters = [None, make_adapter(rank=8, seed=1), make_adapter(rank=20, seed=2)]
    requests = [
        request_of(f"{number}", range(1, 1 + num_prompt), adapters[number % 3], number, max_tokens=max_tokens)
        for number, (num_prompt, max_tokens) in enumerate(lengths)
    ]
    one_by_one = run_all(make_engine(prefill_budget_tokens=budget, max_prefills=1), *requests)
    assert run_all(make_engine(prefill_budget_tokens=budget, max_prefills=max_prefills), *requests) == one_by_one


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("cut", [1, 5, 11])
def test_a_moved_request_goes_on_as_if_it_had_stayed(
    make_engine: MakeEngine, make_adapter: MakeAdapter, temperature: float, cut: int
) -> None:
    request = request_of("a", adapter=make_adapter(), max_tokens=12, temperature=temperature, seed=99)
    stayed = run_all(make_engine(), request)["a"]
    moved = msgspec.structs.replace(request, generated_ids=tuple(stayed[:cut]))
    engine = make_engine()
    engine.add(moved)
    rest = [token for output in steps_of(engine) for token in output.tokens]
    assert [token.position for token in rest] == list(range(cut, 12))
    assert [token.token_id for token in rest] == stayed[cut:]


def test_finish_reasons(make_engine: MakeEngine) -> None:
    free_run = run_all(make_engine(), request_of("a", max_tokens=30))["a"]
    stop = free_run[10]
    engine = make_engine()
    engine.add(request_of("a", max_tokens=30, stop_token_ids=(stop,)))
    outputs = list(steps_of(engine))
    assert outputs[-1].finished == (("a", "stop"),)
    tokens = [token.token_id for output in outputs for token in output.tokens]
    assert tokens == free_run[: free_run.index(stop) + 1]


def test_min_tokens_forbids_ends_before(make_engine: MakeEngine) -> None:
    first = run_all(make_engine(), request_of("a"))["a"][0]
    tokens = run_all(make_engine(), request_of("a", max_tokens=9, stop_token_ids=(first,), min_tokens=5))["a"]
    assert first not in tokens[:5]


def test_a_request_without_a_seed_is_given_one(make_engine: MakeEngine) -> None:
    streams = [tuple(run_all(make_engine(), request_of("a", temperature=1.0, seed=None))["a"]) for _ in range(3)]
    assert len(set(streams)) > 1


def test_logprobs_are_those_of_the_model(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.add(request_of("a", logprobs=3))
    engine.add(request_of("b"))
    for output in steps_of(engine):
        for token in output.tokens:
            if token.request_id == "b":
                assert token.logprobs is None
                continue
            assert token.logprobs is not None
            assert token.logprobs.top_ids[0] == token.token_id, "greedy draws the most likely"
            assert token.logprobs.logprob == token.logprobs.top_logprobs[0] <= 0
            assert len(token.logprobs.top_ids) == 3


def test_what_can_never_work_is_said_at_the_start(make_engine: MakeEngine, tmp_path: Path) -> None:
    with pytest.raises(ModelRejected, match="does not exist"):
        make_engine(model=tmp_path / "nothing")
    with pytest.raises(ConfigError, match="the model's limit is 256"):
        make_engine(max_context=257)
    with pytest.raises(ConfigError, match=r"`engine\.attention` is flashinfer, .* take auto"):
        make_engine(attention="flashinfer")


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.2), ("float16", 0.03)])
def test_half_precision_is_float32_but_for_rounding(
    make_engine: MakeEngine, make_adapter: MakeAdapter, dtype: str, tolerance: float
) -> None:
    """The first token's scores; later ones may follow another token."""
    request = request_of("a", adapter=make_adapter(), max_tokens=1, logprobs=97)

    def scores(engine: Engine) -> dict[int, float]:
        engine.add(request)
        (token,) = [token for output in steps_of(engine) for token in output.tokens]
        assert token.logprobs is not None
        return dict(zip(token.logprobs.top_ids, token.logprobs.top_logprobs, strict=True))

    exact = scores(make_engine())
    assert scores(make_engine(dtype=dtype)) == pytest.approx(exact, abs=tolerance)
