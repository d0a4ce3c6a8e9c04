"""Columns of figures: GPUs with room, and placements that decide as if they asked one GPU after the other."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

import plain_placements
from all_placements import step_times
from placed_requests import PlacedRequests
from punica_scheduler.core.consolidate_slo import MAX_ASKED, ConsolidateSloPlacement
from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.gpu_index import GpuIndex
from punica_scheduler.core.placement import Placement
from punica_scheduler.core.rank_aware import RankAwarePlacement
from punica_scheduler.core.request import RequestRecord
from punica_serve.performance.step_columns import StepTimeColumns
from punica_serve.prefill_chunks import WHOLE_PROMPTS, PrefillBudget
from punica_serve.protocol import Slo

COSTS = StepTimeColumns(step_times())
RANK_AWARE, CONSOLIDATE_SLO = RankAwarePlacement(COSTS), ConsolidateSloPlacement(COSTS)
NEAR_FIRST = replace(RANK_AWARE, adapters_on_host=True)
UUIDS = "ABCDEF"
CHUNKS = PrefillBudget(40)

#: A request: its adapter's rank and number, tokens of its prompt, promises in ms.
Asked = tuple[int, int, int, float | None, float | None]
REQUESTS = st.tuples(
    st.sampled_from([0, 8, 16, 64, 128]),
    st.integers(0, 3),
    st.sampled_from([1, 30, 100]),
    st.sampled_from([None, 3.9, 4.2, 8.0]),
    st.sampled_from([None, 5.0, 1000.0]),
)
#: Where each goes, what it asks for, and whether it begins; then steps of GPUs, adapters in host memory, and ends.
RUNS = st.lists(st.tuples(st.sampled_from(UUIDS), REQUESTS, st.booleans()), max_size=30)
STEPS = st.lists(st.tuples(st.sampled_from(UUIDS), st.sampled_from([0.004, 0.02])), max_size=4)
CACHED = st.lists(st.tuples(st.sampled_from(UUIDS), REQUESTS), max_size=6)
ENDS = st.sets(st.integers(0, 29), max_size=10)


def digest_of(asked: Asked) -> str:
    return f"{asked[0]} {asked[1]}"


def request(placed: PlacedRequests, asked: Asked) -> RequestRecord:
    rank, _, prompt, token_ms, first_ms = asked
    slo = Slo(first_ms and first_ms / 1e3, token_ms and token_ms / 1e3)
    return placed.request(rank=rank, digest=digest_of(asked), prompt=prompt, slo=slo)


@st.composite
def fleets(draw: st.DrawFn) -> PlacedRequests:
    """Six GPUs whose places, LoRA pages and KvCache pages run short. Columns are looked at before they change."""
    budget, lora_pages = draw(st.sampled_from([WHOLE_PROMPTS, CHUNKS])), draw(st.sampled_from([0, 16, 24, 1024]))
    placed = PlacedRequests(UUIDS, batch=5, kv_pages=128, lora_pages=lora_pages, prefill_budget=budget)
    running = []
    for uuid, asked, begins in draw(RUNS):
        record = request(placed, asked)
        if not placed.gpus[uuid].has_room_for(record):
            continue
        placed.order(draw(st.sampled_from([RANK_AWARE, CONSOLIDATE_SLO])), record)
        running.append((uuid, placed.run(uuid, record)))
        if begins:
            placed.begin(*running[-1])
    for uuid, seconds in draw(STEPS):
        placed.step(uuid, seconds)
    for uuid, asked in draw(CACHED):
        placed.cache(uuid, digest_of(asked))
    for place in draw(ENDS):
        if place < len(running):
            placed.end(*running[place])
    return placed


@given(fleets(), REQUESTS)
def test_gpus_with_room_are_those_that_say_so_themselves(placed: PlacedRequests, asked: Asked) -> None:
    record = request(placed, asked)
    columns = placed.index.columns(RANK_AWARE)
    found = [columns[place] for place, has_room in enumerate(columns.with_room(record)) if has_room]
    assert found == plain_placements.with_room(record, placed.index)


def check_order(
    placed: PlacedRequests,
    asked: Asked,
    placement: Placement,
    plain: Callable[[RequestRecord, GpuIndex], Iterator[GpuRecord]],
) -> None:
    record = request(placed, asked)
    assert placed.order(placement, record) == "".join(gpu.uuid for gpu in plain(record, placed.index))


@given(fleets(), REQUESTS)
def test_rank_aware_decides_as_if_it_asked_each_gpu(placed: PlacedRequests, asked: Asked) -> None:
    for placement in (RANK_AWARE, NEAR_FIRST):
        check_order(placed, asked, placement, partial(plain_placements.rank_aware, placement))


@given(fleets(), REQUESTS)
def test_consolidate_slo_decides_as_if_it_asked_each_gpu(placed: PlacedRequests, asked: Asked) -> None:
    check_order(placed, asked, CONSOLIDATE_SLO, partial(plain_placements.consolidate_slo, CONSOLIDATE_SLO))


def test_a_request_of_an_adapter_that_runs_needs_no_pages() -> None:
    placed = PlacedRequests("AB", lora_pages=8)
    for uuid in "AB":
        placed.run(uuid, placed.request(rank=64, digest=uuid))
    assert placed.order(RANK_AWARE, placed.request(rank=64, digest="A")) == "A"
    assert placed.order(CONSOLIDATE_SLO, placed.request(rank=64, digest="B")) == "B"
    assert placed.order(RANK_AWARE, placed.request(rank=8)) == ""


def test_gpus_without_pages_do_not_count_as_asked() -> None:
    """Else a fleet of them would hide the one behind, and the request would spread."""
    crowded = "".join(chr(ord("a") + number) for number in range(MAX_ASKED + 1))
    placed = PlacedRequests("AB" + crowded, lora_pages=8)
    for uuid in crowded:
        placed.run(uuid, placed.request(rank=64))
        placed.run(uuid, placed.request())
    placed.run("A", placed.request(rank=8))
    assert placed.order(CONSOLIDATE_SLO, placed.request(rank=8)) == "AB"
