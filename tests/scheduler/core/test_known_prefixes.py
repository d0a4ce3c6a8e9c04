"""Among GPUs equal to the policy, the one that knows the longest prefix wins; hints are bounded, and may be wrong."""

import pytest

from all_placements import ALL_PLACEMENTS
from punica_scheduler.core import known_prefixes
from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.known_prefixes import KnownPrefixes
from punica_scheduler.core.request import RequestRecord
from punica_serve.paging.prefix_hash import hints_of
from punica_serve.protocol import GpuInfo, PrefixCaching, Request, SamplingParams
from scheduler_in_words import PAGE_SIZE, Cluster, NewCluster

SHARING = PrefixCaching("base")


def _gpu(uuid: str) -> GpuRecord:
    return GpuRecord(GpuInfo(uuid, "cpu", 8, PAGE_SIZE, 64, {}, prefix_caching=SHARING), "runner")


def _request(num_tokens: int = 40, tenant: str | None = None) -> Request:
    return Request("r", 0, (7,) * num_tokens, SamplingParams(), tenant_id=tenant)


def _record(num_tokens: int = 40, tenant: str | None = None) -> RequestRecord:
    return RequestRecord.of("frontend", 1, _request(num_tokens, tenant))


def _hints(num_tokens: int = 40, tenant: str | None = None) -> tuple[int, ...]:
    request = _request(num_tokens, tenant)
    return hints_of(request, SHARING, PAGE_SIZE, request.prompt_ids)


def _known(*told: tuple[GpuRecord, tuple[int, ...]]) -> KnownPrefixes:
    prefixes = KnownPrefixes()
    for gpu, hints in told:
        prefixes.add(gpu, hints)
        prefixes.check_invariants([gpu for gpu, _ in told])
    return prefixes


def test_the_longest_prefix_comes_first_then_the_newest_word() -> None:
    a, b, c = map(_gpu, "ABC")
    prefixes = _known((a, _hints(40)), (b, _hints(10)), (c, _hints(10)))
    assert prefixes.knowing(_record()) == [a, c, b]
    assert prefixes.knowing(_record(9)) == [c, b, a]
    assert prefixes.knowing(_record(4)) == [], "all of it is its last token's page"
    assert prefixes.num_known_tokens(_record(), a) == 8
    assert prefixes.num_known_tokens(_record(), b) == 32


def test_other_tenants_prefixes_are_not_known() -> None:
    prefixes = _known((_gpu("A"), _hints(tenant="a")))
    assert prefixes.knowing(_record(tenant="b")) == [] and len(prefixes.knowing(_record(tenant="a"))) == 1


def test_a_request_is_hashed_again_when_it_has_more_tokens() -> None:
    prefixes, record = _known((_gpu("A"), _hints(40))), _record(9)
    assert len(prefixes.knowing(record)) == 1
    record.generated_ids.extend([7] * 31)
    assert prefixes.num_known_tokens(record, _gpu("B")) == 32


def test_hints_of_a_gpu_and_gpus_of_a_hint_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_prefixes, "MAX_HINTS", 3)
    monkeypatch.setattr(known_prefixes, "MAX_GPUS", 2)
    a, b, c = map(_gpu, "ABC")
    prefixes = _known((a, (1, 2, 3, 4)), (a, (2,)), (b, (4,)), (c, (4,)))
    prefixes.check_invariants([a, b, c])
    prefixes.discard(b)
    prefixes.discard(a)
    prefixes.check_invariants([c])


def test_of_equal_gpus_the_one_that_knows_the_prefix_is_taken(new_cluster: NewCluster) -> None:
    cluster: Cluster = new_cluster()
    for uuid in "ABC":
        cluster.gpu_joins(uuid, pages=64, prefix_caching=SHARING)
    cluster.reports("A", [], hints=_hints(12))
    assert cluster.arrives("r1", prompt=5) == ["A: start r1"]
    assert cluster.arrives("r2", prompt=3) == ["A: start r2"], "the largest working set comes first"
    cluster.is_cancelled("r1")
    cluster.is_cancelled("r2")
    cluster.steps("A")
    assert cluster.arrives("r3", prompt=3) == ["C: start r3"], "no page of it is known"


@pytest.mark.parametrize("name", ["punica", "most_idle", "rank_aware", "consolidate_slo"])
def test_policies_that_hold_gpus_equal_prefer_a_known_prefix(new_cluster: NewCluster, name: str) -> None:
    cluster = new_cluster(placement=ALL_PLACEMENTS[name]())
    for uuid in "ABCD":
        cluster.gpu_joins(uuid, pages=64, prefix_caching=SHARING)
    cluster.reports("A", [], hints=_hints(10))
    cluster.reports("B", [], hints=_hints(40))
    assert cluster.arrives("r1", prompt=40) == ["B: start r1"], "the longest one"
    cluster.is_cancelled("r1")
    cluster.is_drained("B")
    assert cluster.arrives("r2", prompt=40) == ["A: start r2"]


@pytest.mark.parametrize("name", ["punica", "consolidate_slo"])
def test_a_known_prefix_does_not_make_up_for_a_smaller_working_set(new_cluster: NewCluster, name: str) -> None:
    cluster = new_cluster(placement=ALL_PLACEMENTS[name]())
    cluster.gpu_joins("A", pages=64, prefix_caching=SHARING)
    cluster.arrives("r1", prompt=4)
    cluster.steps("A", "r1")
    for uuid in "BC":
        cluster.gpu_joins(uuid, pages=64, prefix_caching=SHARING)
    cluster.reports("B", [], hints=_hints(40))
    assert cluster.arrives("r2", prompt=40) == ["A: start r2"]


def test_workers_that_contradict_each_other_cost_nothing_but_a_choice(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    for uuid in "AB":
        cluster.gpu_joins(uuid, pages=64, prefix_caching=SHARING)
    cluster.reports("A", [], hints=_hints(40))
    cluster.reports("B", [], hints=_hints(40)[:2])
    cluster.reports("B", [], hints=(1, 2, 3))
    assert cluster.arrives("r1", prompt=40) == ["A: start r1"]
    cluster.gpu_is_lost("A")
    assert cluster.arrives("r2", prompt=40) == ["B: start r2"]


def test_a_draining_gpu_is_not_preferred_until_it_is_taken_back(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    for uuid in "AB":
        cluster.gpu_joins(uuid, pages=64, prefix_caching=SHARING)
    cluster.reports("A", [], hints=_hints(40))
    cluster.is_drained("A")
    cluster.reports("A", [], hints=_hints(40))
    assert cluster.arrives("r1", prompt=40) == ["B: start r1"]
    cluster.is_cancelled("r1")
    cluster.is_drained("A", drain=False)
    assert cluster.arrives("r2", prompt=40) == ["A: start r2"]


def test_a_request_that_moves_again_returns_to_the_gpu_that_still_has_its_pages(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.gpu_joins("A", pages=64, prefix_caching=SHARING)
    cluster.arrives("r1", prompt=40, max_tokens=60)
    cluster.steps("A", "r1")
    cluster.reports("A", [], hints=_hints(40))
    for uuid in "BC":
        cluster.gpu_joins(uuid, pages=64, prefix_caching=SHARING)
    assert cluster.is_drained("A")[1:] == ["A: stop r1", "C: start r1 after 1"]
    cluster.is_drained("A", drain=False)
    assert cluster.is_drained("C")[1:] == ["C: stop r1", "A: start r1 after 1"]


def test_the_hints_of_a_gpu_that_is_gone_are_dropped(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    for uuid in "AB":
        cluster.gpu_joins(uuid, pages=64, prefix_caching=SHARING)
    for is_draining in (False, True):
        cluster.reports("A", [], hints=_hints(40))
        cluster.is_drained("A", drain=is_draining)
        cluster.gpu_is_lost("A")
        cluster.gpu_joins("A", pages=64, prefix_caching=SHARING)
    cluster.is_drained("A", drain=False)
    assert cluster.arrives("r1", prompt=40) == ["B: start r1"]
