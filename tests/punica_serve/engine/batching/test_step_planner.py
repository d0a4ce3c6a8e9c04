"""The planner's decisions, without any tensor of a model."""

from collections.abc import Callable

import torch

from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_planner import StepPlanner
from punica_serve.paging.prefix_hash import PrefixHash
from punica_serve.prefill_chunks import PrefillBudget
from punica_serve.protocol import AdapterRef, Request, SamplingParams
from tiny_config import tiny_config

PAGE_SIZE = 4
_MODEL = tiny_config()


def _planner(
    num_pages: int = 16, max_batch_size: int = 4, budget: int = 8, max_prefills: int = 1
) -> tuple[StepPlanner, KvCache]:
    cache = KvCache(_MODEL, num_pages=num_pages, page_size=PAGE_SIZE, dtype=torch.float32, device=torch.device("cpu"))
    planner = StepPlanner(
        cache, max_batch_size=max_batch_size, prefill_budget=PrefillBudget(budget), max_prefills=max_prefills
    )
    return planner, cache


def _sequence(name: str, arrival_ns: int, num_prompt: int = 3, adapter: str | None = None) -> Sequence:
    ref = AdapterRef(adapter, "", 0, {"q_proj": 8}) if adapter else None
    return Sequence.of(Request(name, arrival_ns, (1,) * num_prompt, SamplingParams(), ref), 256)


def _ready(sequence: Sequence) -> bool:
    return True


def _admit(planner: StepPlanner) -> list[str]:
    """Admits all that may start now, as the engine does; their names."""
    admitted = []
    while sequence := planner.next_admissible():
        planner.admit(sequence)
        admitted.append(sequence.request_id)
    return admitted


def _run(
    planner: StepPlanner, is_ready: Callable[[Sequence], bool] = _ready
) -> tuple[str | None, list[str], list[str]]:
    """One step as the engine accounts for it: (prefill, decodes, displaced) by name."""
    _admit(planner)
    plan, preempted = planner.plan(is_ready)
    planner.check_invariants()
    if plan is None:
        return None, [], [s.request_id for s in preempted]
    for sequence in plan.decodes:
        sequence.num_cached += 1
    for chunk in plan.prefills:
        chunk.sequence.num_cached = chunk.end
    for sequence in plan.sampled:
        sequence.token_ids.append(1)
    prefills = " ".join(chunk.sequence.request_id for chunk in plan.prefills) or None
    return prefills, [s.request_id for s in plan.decodes], [s.request_id for s in preempted]


def test_one_prefill_a_step_oldest_first_with_all_decodes() -> None:
    planner, _ = _planner()
    for name, loaded in (("b", 2), ("a", 1), ("c", 3)):
        planner.add(_sequence(name, loaded))
    assert _run(planner) == ("a", [], [])
    assert _run(planner) == ("b", ["a"], [])
    assert _run(planner) == ("c", ["a", "b"], [])
    assert _run(planner) == (None, ["a", "b", "c"], [])


def test_several_prefills_share_a_steps_budget_and_those_of_one_adapter_are_adjacent() -> None:
    planner, _ = _planner(num_pages=32, max_batch_size=8, budget=12, max_prefills=3)
    for number, adapter in enumerate(("x", "y", "x", "y")):
        planner.add(_sequence(f"{adapter}{number}", number, num_prompt=5, adapter=adapter))
    assert _run(planner) == ("x0 x2 y1", [], []), "x2 gets the last two tokens of the budget"
    assert _run(planner) == ("x2 y3", ["y1", "x0"], [])
    assert _run(planner) == (None, ["x0", "x2", "y1", "y3"], [])


def test_a_prefill_that_joins_the_copy_of_its_adapter_is_the_only_one() -> None:
    planner, _ = _planner(num_pages=32, max_prefills=3)
    for number, adapter in enumerate(("late", None, None)):
        planner.add(_sequence(f"{adapter}{number}", number, adapter=adapter))
    _admit(planner)

    def names(may_join: bool) -> list[str]:
        plan, _ = planner.plan(lambda sequence: sequence.digest is None, lambda *_: may_join)
        return [chunk.sequence.request_id for chunk in plan.prefills] if plan else []

    assert names(may_join=True) == ["late0"]
    assert names(may_join=False) == ["None1", "None2"]


def test_pages_of_a_prefill_whose_help_may_fail_are_unknown_until_its_step_has_ended() -> None:
    planner, cache = _planner(budget=16)
    helped, twin = (_sequence(name, number, num_prompt=9) for number, name in enumerate(("helped", "twin")))
    for sequence in (helped, twin):
        sequence.prefix_hash = PrefixHash((), PAGE_SIZE)
        planner.add(sequence)
    _admit(planner)
    assert planner.plan(lambda sequence: sequence is helped)[0] is not None
    helped.num_cached, helped.num_in_flight, helped.is_unsure = 9, 1, True
    planner.plan(lambda sequence: not sequence.is_unsure)
    assert twin.num_cached == cache.pages.num_known == 0, "the step may still fail"

    helped.is_unsure = False
    helped.restart(0)  # it has failed, and its pages hold anything
    assert planner.plan(lambda sequence: sequence is helped)[0] is not None
    helped.num_cached, helped.num_in_flight = 9, 1
    planner.plan(_ready)
    assert twin.num_cached == 8 and cache.pages.num_known == 2
    planner.check_invariants()


def test_a_prefill_whose_help_may_fail_leaves_no_pages_to_others_when_it_is_cancelled() -> None:
    planner, cache = _planner(budget=16)
    helped = _sequence("helped", 0, num_prompt=9)
    helped.prefix_hash = PrefixHash((), PAGE_SIZE)
    planner.add(helped)
    _admit(planner)
    planner.plan(_ready)
    helped.num_cached, helped.is_unsure = 9, True
    planner.remove(helped)
    assert cache.pages.num_known == 0 and cache.pages.num_free == cache.pages.num_pages


def test_a_long_prompt_is_chunked_and_yields_its_token_with_the_last_chunk() -> None:
    planner, _ = _planner(budget=8)
    sequence = _sequence("long", 1, num_prompt=19)
    planner.add(sequence)
    _admit(planner)
    ends = []
    while sequence.num_uncached > 1:
        plan, _ = planner.plan(_ready)
        assert plan is not None
        (chunk,) = plan.prefills
        ends.append((chunk.end, len(plan.sampled)))
        sequence.num_cached = chunk.end
        for sampled in plan.sampled:
            sampled.token_ids.append(1)
    assert ends == [(8, 0), (16, 0), (19, 1)]


def test_decodes_of_one_adapter_are_adjacent_and_the_prefills_come_first() -> None:
    planner, _ = _planner(max_batch_size=8)
    for number, adapter in enumerate(("x", "y", None, "x", "y")):
        planner.add(_sequence(f"{adapter}{number}", number, adapter=adapter))
    for _ in range(5):
        _run(planner)
    planner.add(_sequence("y9", 9, adapter="y"))
    assert _run(planner) == ("y9", ["y1", "y4", "x0", "x3", "None2"], [])


def test_a_full_batch_admits_nobody_until_somebody_leaves() -> None:
    planner, _ = _planner(max_batch_size=2)
    sequences = [_sequence(name, number) for number, name in enumerate("abc")]
    for sequence in sequences:
        planner.add(sequence)
    assert _admit(planner) == ["a", "b"]
    planner.remove(sequences[0])
    assert _admit(planner) == ["c"]


def test_the_first_that_does_not_fit_blocks_those_behind_it() -> None:
    planner, _ = _planner(num_pages=3)
    planner.add(_sequence("large", 1, num_prompt=15))  # 16 tokens with the next one: 4 pages
    planner.add(_sequence("small", 2, num_prompt=1))
    assert _admit(planner) == []


def test_admission_takes_pages_for_prompt_and_one_token_not_for_max_tokens() -> None:
    planner, cache = _planner(num_pages=2)
    planner.add(_sequence("a", 1, num_prompt=7))
    _admit(planner)
    assert cache.pages.num_free == 0
    planner, cache = _planner(num_pages=2)
    planner.add(_sequence("b", 1, num_prompt=3))
    _admit(planner)
    assert cache.pages.num_free == 1


def test_a_missing_adapter_keeps_its_request_out_and_nobody_else() -> None:
    planner, _ = _planner()
    planner.add(_sequence("cold", 1, adapter="x"))
    planner.add(_sequence("warm", 2))

    def is_ready(sequence: Sequence) -> bool:
        return sequence.digest is None

    assert _run(planner, is_ready) == ("warm", [], [])
    assert _run(planner, is_ready) == (None, ["warm"], [])
    assert _run(planner) == ("cold", ["warm"], [])


def test_the_newest_gives_way_when_an_older_one_needs_a_page() -> None:
    planner, _ = _planner(num_pages=4)
    old, mid, new = (_sequence(name, number, num_prompt=3) for number, name in enumerate(("old", "mid", "new")))
    for sequence in (old, mid, new):
        planner.add(sequence)
    preempted: list[str] = []
    while not preempted:
        preempted = _run(planner)[2]
    assert preempted == ["new"]
    assert planner.running == (old, mid) and planner.waiting == (new,)
    assert new.pages == [] and new.num_cached == 0
    assert len(new.token_ids) > 3, "what it has generated is kept"


def test_the_newest_may_be_the_one_that_needs_the_page() -> None:
    planner, _ = _planner(num_pages=2)
    planner.add(_sequence("old", 1, num_prompt=1))
    planner.add(_sequence("new", 2, num_prompt=3))
    outcomes = [_run(planner) for _ in range(4)]
    assert ["new"] in [preempted for *_, preempted in outcomes]
    assert all("old" in (prefill, *decodes) for prefill, decodes, _ in outcomes), "the oldest never stands still"


def test_a_preempted_request_resumes_with_a_prefill_of_all_its_tokens() -> None:
    planner, _ = _planner(num_pages=2)
    old, new = _sequence("old", 1, num_prompt=2), _sequence("new", 2, num_prompt=3)
    planner.add(old)
    planner.add(new)
    while new not in planner.waiting or not new.token_ids[3:]:
        _run(planner)
    num_tokens = len(new.token_ids)
    planner.remove(old)
    _admit(planner)
    plan, _ = planner.plan(_ready)
    assert plan is not None
    assert [(chunk.start, chunk.end) for chunk in plan.prefills] == [(0, num_tokens)]


def test_nothing_to_do_is_no_plan() -> None:
    planner, _ = _planner()
    assert planner.plan(_ready) == (None, [])


def test_a_request_whose_last_token_is_in_flight_keeps_its_pages_and_gives_up_its_place() -> None:
    planner, cache = _planner(max_batch_size=1)
    ending = Sequence.of(Request("ending", 0, (1,) * 3, SamplingParams(max_tokens=1)), 256)
    planner.add(ending)
    planner.add(_sequence("next", 1))
    assert _run(planner) == ("ending", [], [])
    ending.num_in_flight = 1
    held = list(ending.pages)
    assert _run(planner) == ("next", [], [])
    assert ending.pages == held
    planner.remove(ending)
    assert cache.pages.num_free == 16 - 1
