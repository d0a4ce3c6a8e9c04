"""Prefix caching: the same tokens as without it, whatever is shared, preempted, cancelled or evicted."""

import random
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine_fixtures import MakeAdapter, MakeEngine
from examples import examples
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.engine import Engine
from punica_serve.engine.step_output import Failure, StepOutput
from punica_serve.protocol import AdapterRef, Request, SamplingParams
from waits import DEADLINE_S

PAGE_SIZE = 4
#: Begins prompts that share pages.
SYSTEM = tuple(range(10, 31))


def _request(
    name: str,
    prompt: Sequence[int] = SYSTEM,
    adapter: AdapterRef | None = None,
    tenant: str | None = None,
    salt: str | None = None,
    **params: Any,
) -> Request:
    sampling = SamplingParams(**{"max_tokens": 6, "ignore_eos": True, "seed": 1, **params})
    arrival_ns = int("".join(filter(str.isdigit, name)) or 0)
    return Request(name, arrival_ns, tuple(prompt), sampling, adapter, tenant_id=tenant, cache_salt=salt)


def _run(engine: Engine, *requests: Request) -> dict[str, list[int]]:
    """Adds all at once; their tokens."""
    for request in requests:
        engine.add(request)
    streams: dict[str, list[int]] = {request.request_id: [] for request in requests}
    deadline = time.monotonic() + DEADLINE_S
    while engine.num_requests:
        assert time.monotonic() < deadline
        _account(engine.step(), streams)
        engine.check_invariants()
        if not engine.has_runnable:
            engine.wait(0.05)
    return streams


def _account(output: StepOutput, streams: dict[str, list[int]]) -> None:
    assert not output.failures
    for token in output.tokens:
        if token.request_id in streams:
            assert token.position == len(streams[token.request_id])
            streams[token.request_id].append(token.token_id)


def _hits(engine: Engine) -> int:
    return engine.prefix_tokens[1]


@pytest.fixture
def caching(make_engine: MakeEngine) -> Engine:
    return make_engine(prefix_caching=True)


def test_a_later_request_computes_only_what_differs(caching: Engine, make_engine: MakeEngine) -> None:
    first, second = _request("r1", (*SYSTEM, 40)), _request("r2", (*SYSTEM, 50, 51))
    expected = _run(make_engine(), first) | _run(make_engine(), second)
    assert _run(caching, first) == {"r1": expected["r1"]}
    assert caching.num_free_kv_pages == caching.num_kv_pages and caching.num_known_kv_pages == (22 + 5) // PAGE_SIZE
    caching.add(second)
    outputs = [caching.step() for _ in range(7)]
    assert outputs[0].num_prefill_tokens == 23 - 20
    assert [output.cached for output in outputs if output.cached] == [(("r2", 20),)]
    assert [token.token_id for output in outputs for token in output.tokens] == expected["r2"]
    assert caching.prefix_tokens == (22 + 23, 20)


@pytest.mark.parametrize("num_prompt", [1, 4, 5, 8])
def test_the_last_token_is_always_computed(caching: Engine, make_engine: MakeEngine, num_prompt: int) -> None:
    request = _request("r1", SYSTEM[:num_prompt])
    expected = _run(make_engine(), request)
    assert _run(caching, request) == _run(caching, request) == _run(caching, request) == expected
    assert _hits(caching) == 2 * ((num_prompt - 1) // PAGE_SIZE * PAGE_SIZE)


def test_a_group_that_arrives_at_once_computes_its_prefix_once(caching: Engine, make_engine: MakeEngine) -> None:
    group = [_request(f"r{number}", (*SYSTEM, 40 + number)) for number in range(4)]
    expected = _run(make_engine(), *group)
    for request in group:
        caching.add(request)
    prefilled, streams = [], {request.request_id: list[int]() for request in group}
    while caching.num_requests:
        output = caching.step()
        prefilled.append(output.num_prefill_tokens)
        _account(output, streams)
    assert [count for count in prefilled if count] == [22, 2, 2, 2]
    assert streams == expected
    assert caching.num_shared_kv_pages == 0


LONG = tuple(token % 90 + 1 for token in range(200))


def test_a_step_of_several_prefills_computes_a_prefix_once(make_engine: MakeEngine) -> None:
    """The others wait a step for its pages, and meanwhile those of other prefixes run."""
    engine = make_engine(prefix_caching=True, prefill_budget_tokens=1024, max_prefills=8, max_batch_size=8)
    for number in range(3):
        engine.add(_request(f"r{number}", (*LONG, number + 1)))
    engine.add(_request("r9", (96, *LONG[:30])))
    assert [engine.step().num_prefill_tokens for _ in range(3)] == [201 + 31, 2, 0]
    assert _hits(engine) == 2 * 200


def test_nobody_waits_for_a_prefix_that_is_cheaper_to_compute(make_engine: MakeEngine) -> None:
    engine = make_engine(prefix_caching=True, prefill_budget_tokens=1024, max_prefills=8, max_batch_size=8)
    for number in range(2):
        engine.add(_request(f"r{number}", (*LONG[:100], number + 1)))
    assert engine.step().num_prefill_tokens == 202


def test_who_waits_goes_on_if_the_first_is_cancelled(make_engine: MakeEngine) -> None:
    engine = make_engine(prefix_caching=True, prefill_budget_tokens=64, max_prefills=8, max_batch_size=8)
    for number in range(3):
        engine.add(_request(f"r{number}", (*LONG, number + 1)))
    assert engine.step().num_prefill_tokens == 64
    engine.cancel("r0")
    prefilled = [engine.step().num_prefill_tokens for _ in range(6)]
    assert prefilled[:3] == [64, 64, 9 + 9], "what the first has computed is not lost, and the third waits no more"


def test_the_next_in_a_group_computes_the_prefix_if_the_first_is_cancelled(caching: Engine) -> None:
    caching.add(_request("r1", (*SYSTEM, 1)))
    caching.add(_request("r2", (*SYSTEM, 2)))
    caching.cancel("r1")
    assert caching.step().num_prefill_tokens == 22
    assert _hits(caching) == 0


def test_pages_in_use_are_shared_and_counted_once(make_engine: MakeEngine) -> None:
    engine = make_engine(prefix_caching=True, num_kv_pages=10, prefill_budget_tokens=64)
    engine.add(_request("r1", SYSTEM, max_tokens=4))
    engine.step()
    engine.add(_request("r2", SYSTEM, max_tokens=4))
    assert engine.num_free_kv_pages == 10 - 6 - 1 and engine.num_shared_kv_pages == 5
    engine.cancel("r1")
    assert engine.num_free_kv_pages == 10 - 6 and engine.num_shared_kv_pages == 0


def test_a_preempted_request_finds_its_own_pages_again(make_engine: MakeEngine) -> None:
    requests = [_request("r1", SYSTEM[:3], max_tokens=20), _request("r2", SYSTEM[9:18], max_tokens=9)]
    expected = _run(make_engine(), *requests)
    engine = make_engine(prefix_caching=True, num_kv_pages=7)
    assert _run(engine, *requests) == expected
    assert _hits(engine) > 0


def test_a_moved_request_finds_the_pages_of_its_answer(caching: Engine, make_engine: MakeEngine) -> None:
    request = _request("r1", max_tokens=12)
    expected = _run(make_engine(), request)["r1"]
    _run(caching, request)
    again = replace(request, generated_ids=tuple(expected[:8]))
    caching.add(again)
    assert caching.step().num_prefill_tokens <= PAGE_SIZE
    assert _hits(caching) == 28
    caching.cancel("r1")


def test_nobody_finds_the_pages_of_another_tenant_version_or_salt(caching: Engine, make_adapter: MakeAdapter) -> None:
    one, other = make_adapter(seed=1), make_adapter(seed=2)
    owners: Iterable[dict[str, Any]] = (
        {},
        {"tenant": "a"},
        {"tenant": "b"},
        {"adapter": one},
        {"adapter": other},
        {"adapter": one, "tenant": "a"},
        {"salt": "a"},
        {"salt": one.digest},
        {"tenant": one.digest},
        {"tenant": "a", "salt": "a"},
        {"adapter": other, "salt": one.digest},
    )
    for number, owner in enumerate(owners):
        _run(caching, _request(f"r{number}", **owner))
        assert _hits(caching) == number * 20, owner
        _run(caching, _request(f"again {number}", **owner))
        assert _hits(caching) == (number + 1) * 20, owner


def test_hundreds_of_prompts_that_share_all_but_their_last_token(make_engine: MakeEngine) -> None:
    """More than may hold the shared pages at once: `MAX_SHARING` times the pool's 60 pages, of which each names 50."""
    prompts = [(*LONG, number % 96 + 1) for number in range(300)]
    requests = [_request(f"r{number}", prompt, max_tokens=2) for number, prompt in enumerate(prompts)]
    expected = [_run(make_engine(), request)[request.request_id] for request in requests[:5]]
    engine = make_engine(prefix_caching=True, num_kv_pages=60, max_batch_size=64, max_prefills=8)
    streams = _run(engine, *requests)
    assert [streams[f"r{number}"] for number in range(5)] == expected
    assert all(streams[f"r{number}"] == streams[f"r{number % 96}"] for number in range(300))
    assert _hits(engine) >= 299 * 200
    assert engine.num_free_kv_pages == 60 and engine.num_shared_kv_pages == 0


@pytest.mark.parametrize("num_tokens", [1, 3, 4, 5])
def test_a_prompt_and_answer_that_fill_the_context_exactly(
    make_engine: MakeEngine, caching: Engine, num_tokens: int
) -> None:
    prompt = tuple(token % 90 + 1 for token in range(caching.max_context - num_tokens))
    request = _request("r1", prompt, max_tokens=num_tokens)
    expected = _run(make_engine(), request)
    assert _run(caching, request) == _run(caching, request) == expected
    assert _hits(caching) == (len(prompt) - 1) // PAGE_SIZE * PAGE_SIZE


def test_pages_of_noise_are_not_kept(caching: Engine, tiny_llama: Path, make_adapter: MakeAdapter) -> None:
    poison = make_adapter(seed=1, scale=1e30)
    caching.add(_request("r1", adapter=poison))
    failures: list[Failure] = []
    while caching.num_requests:
        failures += caching.step().failures
    assert failures and caching.num_known_kv_pages == 0


def test_without_it_nothing_is_kept(make_engine: MakeEngine) -> None:
    engine = make_engine()
    _run(engine, _request("r1"), _request("r2"))
    assert engine.num_known_kv_pages == 0 and engine.prefix_tokens == (0, 0)


# ------------------------------------------------------------------ any history

_PROMPTS = (SYSTEM[:3], SYSTEM[:8], SYSTEM, (*SYSTEM[:13], 60, 61, 62, 63, 64), (*SYSTEM, 70), SYSTEM[5:12])
_DEEDS = st.lists(
    st.tuples(st.sampled_from([*["add"] * 8, *["cancel"] * 4, *["step"] * 8, "kill"]), st.integers(0, 99)), max_size=40
)


@pytest.fixture(scope="module")
def mixed(make_adapter: MakeAdapter) -> list[Request]:
    adapters = (None, make_adapter(seed=1), make_adapter(seed=2))
    return [
        _request(
            f"r{number}",
            _PROMPTS[number % len(_PROMPTS)],
            adapters[number % 3],
            tenant=(None, "a")[number % 2],
            salt=(None, None, "s")[number // 6 % 3],
            max_tokens=2 + number % 9,
            temperature=float(number % 2),
            presence_penalty=0.5 * (number % 5 == 0),
        )
        for number in range(18)
    ]


@pytest.fixture(scope="module")
def alone(mixed: list[Request], tiny_llama: Path) -> dict[str, list[int]]:
    """The tokens of each request, without caching."""
    config = EngineConfig(model=tiny_llama, dtype="float32", page_size=PAGE_SIZE, num_kv_pages=64, num_lora_pages=64)
    engine = Engine(config)
    tokens = {request.request_id: _run(engine, request)[request.request_id] for request in mixed}
    engine.close()
    return tokens


_ON_A_GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.timeout(600)])


@pytest.mark.parametrize("device", ["cpu", "overlapped", _ON_A_GPU])
@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(deeds=[("add", number) for number in range(18)], num_pages=14)
@example(deeds=[*(("add", n) for n in range(9)), *[("step", 0)] * 9, ("kill", 0), *[("step", 0)] * 3], num_pages=14)
@given(deeds=_DEEDS, num_pages=st.integers(9, 24))
def test_any_history_gives_the_tokens_of_no_caching(
    request: pytest.FixtureRequest,
    make_engine: MakeEngine,
    mixed: list[Request],
    alone: dict[str, list[int]],
    device: str,
    deeds: list[tuple[str, int]],
    num_pages: int,
) -> None:
    if device == "overlapped":
        request.getfixturevalue("overlapped")

    def new_engine() -> Engine:
        return make_engine(
            device="cuda" if device == "cuda" else "cpu",
            prefix_caching=True,
            num_kv_pages=num_pages,
            max_batch_size=4,
            prefill_budget_tokens=random.Random(num_pages).choice((3, 8, 64)),
        )

    engine = new_engine()
    streams: dict[str, list[int]] = {}
    inside: dict[str, Request] = {}
    for deed, number in [*deeds, *[("step", 0)] * 400]:
        chosen = mixed[number % len(mixed)]
        if deed == "add" and chosen.request_id not in inside:
            known = streams.setdefault(chosen.request_id, [])
            if len(known) < chosen.sampling.max_tokens:
                inside[chosen.request_id] = replace(chosen, generated_ids=tuple(known))
                engine.add(inside[chosen.request_id])
        elif deed == "cancel":
            engine.cancel(chosen.request_id)
            inside.pop(chosen.request_id, None)
        elif deed == "kill":  # what its last step may have drawn was never told
            engine = new_engine()
            for request_id, moved in inside.items():
                inside[request_id] = replace(moved, generated_ids=tuple(streams[request_id]))
                engine.add(inside[request_id])
        elif deed == "step" and engine.num_requests:
            output = engine.step()
            _account(output, streams)
            for request_id, _ in output.finished:
                del inside[request_id]
            if not output.has_run:
                engine.wait(0.05)
        engine.check_invariants()
    assert not engine.num_requests
    assert engine.num_free_kv_pages == engine.num_kv_pages
    for request_id, tokens in streams.items():
        assert tokens == alone[request_id][: len(tokens)]
