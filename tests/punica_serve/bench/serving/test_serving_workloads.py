from itertools import islice

import pytest

from punica_serve.bench.serving.serving_workloads import GROUP_SIZE, long_requests, num_adapters, requests_of
from punica_serve.errors import ConfigError
from punica_serve.workload import shipped_workload

LONG = {"vocab_size": 32_000, "max_context": 4096}


def test_ours_has_the_lengths_of_the_shipped_workload_and_an_adapter_for_each_request() -> None:
    requests = requests_of("ours", "distinct", 20, **LONG)
    assert [(len(request.prompt_ids), request.max_tokens) for request in requests] == [*shipped_workload(20).lengths]
    assert [request.adapter for request in requests] == [*range(20)]
    assert num_adapters(requests) == 20


def test_heavy_workloads_have_one_length() -> None:
    assert {(len(r.prompt_ids), r.max_tokens) for r in requests_of("prompt_heavy", "base", 3, **LONG)} == {(2048, 64)}
    assert {(len(r.prompt_ids), r.max_tokens) for r in requests_of("answer_heavy", "base", 3, **LONG)} == {(128, 1024)}


def test_a_group_shares_its_adapter_and_its_system_prompt_and_nothing_else() -> None:
    requests = requests_of("shared_prefixes", "distinct", 2 * GROUP_SIZE, **LONG)
    first, second = requests[:GROUP_SIZE], requests[GROUP_SIZE:]
    for group, adapter in ((first, 0), (second, 1)):
        assert {request.prompt_ids[:1000] for request in group} == {group[0].prompt_ids[:1000]}
        assert len({request.prompt_ids for request in group}) == GROUP_SIZE
        assert {request.adapter for request in group} == {adapter}
    assert first[0].prompt_ids[:1000] != second[0].prompt_ids[:1000]


def test_skewed_repeats_adapters_and_base_has_none() -> None:
    assert 1 < num_adapters(requests_of("ours", "skewed", 50, **LONG)) < 20
    base = requests_of("ours", "base", 5, **LONG)
    assert {request.adapter for request in base} == {None} and num_adapters(base) == 0


def test_requests_are_cut_to_fit_a_small_model() -> None:
    for request in requests_of("prompt_heavy", "base", 2, vocab_size=70, max_context=256):
        assert len(request.prompt_ids) + request.max_tokens <= 256
        assert max(request.prompt_ids) < 70


def test_more_requests_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match="`--requests` is 1001; a workload has 1000 at most"):
        requests_of("ours", "base", 1001, **LONG)


def test_long_prompts_share_nothing_and_must_fit_the_context() -> None:
    first, second = islice(long_requests("base", 4095, **LONG), 2)
    assert (len(first.prompt_ids), first.max_tokens, first.adapter) == (4095, 1, None)
    assert first.prompt_ids[:16] != second.prompt_ids[:16]
    with pytest.raises(ConfigError, match="`--long-prompt` is 4096, and the context holds 4096 with an answer"):
        long_requests("distinct", 4096, **LONG)
