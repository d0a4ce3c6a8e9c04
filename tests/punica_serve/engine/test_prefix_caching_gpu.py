"""Prefix caching on a GPU: CUDA graphs read shared pages, and steps may name more pages than the pool has."""

from collections.abc import Sequence

import pytest

from engine_fixtures import MakeAdapter, MakeEngine
from engine_tokens import add_step, tokens_of
from punica_serve.protocol import AdapterRef, Request, SamplingParams

# Triton compiles its kernels the first time.
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

SYSTEM = tuple(range(1, 42))


def _groups(refs: Sequence[AdapterRef | None], size: int = 6, system: tuple[int, ...] = SYSTEM) -> list[Request]:
    """Groups of requests with one adapter and one long prefix."""
    return [
        Request(
            f"{group}-{member}",
            group * size + member,
            (90 - group, *system, *range(50, 50 + member)),
            SamplingParams(max_tokens=6 + member, ignore_eos=True, seed=member),
            ref,
        )
        for group, ref in enumerate(refs)
        for member in range(size)
    ]


@pytest.fixture(scope="module")
def refs(make_adapter: MakeAdapter) -> list[AdapterRef | None]:
    return [None, *(make_adapter(rank, seed) for seed, rank in enumerate((8, 16)))]


@pytest.mark.parametrize("cuda_graphs", [True, False])
@pytest.mark.parametrize("steps_apart", [0, 2])
def test_tokens_are_those_of_no_caching(
    make_engine: MakeEngine, refs: list[AdapterRef | None], cuda_graphs: bool, steps_apart: int
) -> None:
    settings = {"device": "cuda", "max_batch_size": 8, "prefill_budget_tokens": 32, "cuda_graphs": cuda_graphs}
    caching = make_engine(prefix_caching=True, **settings)
    expected = tokens_of(make_engine(**settings), _groups(refs))
    assert tokens_of(caching, _groups(refs), steps_apart=steps_apart) == expected
    assert tokens_of(caching, _groups(refs), steps_apart=steps_apart) == expected, "all prefixes are known by now"
    num_queries, num_hits = caching.prefix_tokens
    assert num_hits > 0.7 * num_queries


@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_tokens_are_the_same_where_decodes_read_shared_pages_once(
    make_engine: MakeEngine, refs: list[AdapterRef | None], cuda_graphs: bool
) -> None:
    """Prefixes of 200 tokens, since shorter ones than 128 are read by each."""
    settings = {"device": "cuda", "max_batch_size": 16, "prefill_budget_tokens": 64, "cuda_graphs": cuda_graphs}
    requests = _groups(refs, size=5, system=SYSTEM * 5)
    expected = tokens_of(make_engine(**settings), requests)
    sharing = make_engine(prefix_caching=True, shared_prefix_attention=True, **settings)
    for _ in range(2):
        assert tokens_of(sharing, requests) == expected
    pages = make_engine(prefix_caching=True, shared_prefix_attention=True, num_kv_pages=70, **settings)
    assert tokens_of(pages, requests) == expected, "requests are preempted, leave their groups and come back"


def test_pages_are_evicted_and_requests_preempted_while_they_share(
    make_engine: MakeEngine, refs: list[AdapterRef | None]
) -> None:
    settings = {"device": "cuda", "max_batch_size": 8, "prefill_budget_tokens": 32}
    expected = tokens_of(make_engine(**settings), _groups(refs))
    assert tokens_of(make_engine(prefix_caching=True, num_kv_pages=22, **settings), _groups(refs)) == expected


def test_a_step_names_more_pages_than_the_pool_has(make_engine: MakeEngine) -> None:
    """Eight requests of 13 pages or 14 in a pool of 32: without sharing only two would fit."""
    settings = {"device": "cuda", "max_batch_size": 8, "prefill_budget_tokens": 64}
    group = _groups([None], size=8)
    expected = tokens_of(make_engine(**settings), group)
    engine = make_engine(prefix_caching=True, num_kv_pages=32, **settings)
    tokens: dict[str, list[int]] = {request.request_id: [] for request in group}
    for request in group:
        engine.add(request)
        add_step(engine, tokens)
    num_named = engine.num_kv_pages - engine.num_free_kv_pages + engine.num_shared_kv_pages
    while engine.num_requests:
        add_step(engine, tokens)
    assert tokens == expected
    assert num_named > engine.num_kv_pages
