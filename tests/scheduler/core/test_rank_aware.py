"""Placement by cost: CaraServe's algorithm 1, and the toy of its figure 5."""

from dataclasses import replace

import pytest

from placed_requests import PlacedRequests
from punica_scheduler.core.rank_aware import RankAwarePlacement
from punica_serve.base_model.prefill_budget import prefill_budget_of
from punica_serve.performance.profile import load_profile
from punica_serve.performance.step_columns import StepTimeColumns
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.protocol import Slo
from punica_serve.shapes import shape_of


def rank_aware(profile: str = "a10-7b-unpadded") -> RankAwarePlacement:
    return RankAwarePlacement(StepTimeColumns(StepTimeModel(load_profile(profile))))


@pytest.mark.parametrize(("profile", "order"), [("a10-7b-padded", "BA"), ("a10-7b-unpadded", "AB")])
def test_figure_5_has_opposite_answers_with_padded_and_unpadded_kernels(profile: str, order: str) -> None:
    """A runs 24 requests of rank 32, B 16 of rank 64; one of rank 64 comes, whose promise is 36 ms a token."""
    placed = PlacedRequests("AB")
    for uuid, rank, num in (("A", 32, 24), ("B", 64, 16)):
        for _ in range(num):
            placed.run(uuid, placed.request(rank=rank))
    record = placed.request(rank=64, slo=Slo(time_per_token_s=0.036))
    assert placed.order(rank_aware(profile), record) == order


def test_an_empty_gpu_costs_nothing_and_ties_go_to_the_highest_uuid() -> None:
    placed = PlacedRequests("ABCD")
    placed.run("D", placed.request(rank=8))
    assert placed.order(rank_aware(), placed.request(rank=8)) == "CBAD"


def test_an_empty_gpu_is_taken_even_if_the_promise_breaks_there() -> None:
    placed = PlacedRequests("AB")
    placed.run("B", placed.request(rank=8))
    assert placed.order(rank_aware(), placed.request(rank=8, slo=Slo(time_per_token_s=0.001))) == "AB"


def test_a_promise_that_would_break_outweighs_a_longer_batch() -> None:
    placed = PlacedRequests("AB")
    placed.run("A", placed.request(rank=64, slo=Slo(time_per_token_s=0.0337)))
    for _ in range(7):
        placed.run("B", placed.request(rank=64))
    assert placed.order(rank_aware(), placed.request(rank=64)) == "BA"
    placed.run("B", placed.request(rank=64, slo=Slo(time_per_token_s=0.0337)))
    assert placed.order(rank_aware(), placed.request(rank=64)) == "AB", "both break, so the shorter batch pays less"


def test_full_gpus_and_gpus_without_pages_are_left_out() -> None:
    placed = PlacedRequests("ABC", batch=2)
    for _ in range(2):
        placed.run("A", placed.request())
    placed.run("B", placed.request(prompt=4000))
    assert placed.order(rank_aware(), placed.request(prompt=200)) == "C"
    assert placed.order(rank_aware(), placed.request(prompt=5000)) == ""


def test_without_gpus_there_are_no_candidates() -> None:
    placed = PlacedRequests("")
    assert placed.order(rank_aware(), placed.request()) == ""


def test_who_leaves_costs_no_more() -> None:
    placed = PlacedRequests("AB")

    def running(uuid: str, rank: int) -> int:
        counter = placed.run(uuid, placed.request(rank=rank))
        placed.begin(uuid, counter)
        return counter

    heavy = running("A", 128)
    running("B", 8)
    running("B", 8)
    assert placed.order(rank_aware(), placed.request(rank=8)) == "AB"
    others = [running("A", 8) for _ in range(3)]
    assert placed.order(rank_aware(), placed.request(rank=8)) == "BA"
    for counter in (heavy, *others[1:]):
        placed.end("A", counter)
    assert placed.order(rank_aware(), placed.request(rank=8)) == "AB"


def test_where_prefills_run_apart_a_place_in_a_queue_is_cheaper_than_the_start_of_one() -> None:
    placed = PlacedRequests("AB")
    for uuid in "AABB":
        counter = placed.run(uuid, placed.request(rank=8))
    placed.begin("B", counter)
    assert placed.order(rank_aware(), placed.request(rank=8)) == "AB", "A's queue is prefilled with the new one"
    placed.end_step("A")
    assert placed.order(rank_aware(), placed.request(rank=8)) == "BA", "A's second prefill is under way"


def test_nobody_shares_a_prefill_that_is_under_way() -> None:
    placed = PlacedRequests("AB")
    placed.run("A", placed.request(rank=8))
    placed.begin("B", placed.run("B", placed.request(rank=8)))
    assert placed.order(rank_aware(), placed.request(rank=8)) == "BA", "an idle GPU prefills at once"


def test_where_prefills_run_beside_decodes_a_queue_makes_none_cheaper() -> None:
    placed = PlacedRequests("AB")
    for uuid in "AB":
        counter = placed.run(uuid, placed.request(rank=8))
    placed.begin("B", counter)
    assert placed.order(rank_aware("h200-7b"), placed.request(rank=8)) == "BA"


def chunking(uuids: str) -> PlacedRequests:
    """GPUs with a Llama-2-7B that cut prompts into chunks of 512 tokens and less."""
    return PlacedRequests(uuids, kv_pages=1 << 17, prefill_budget=prefill_budget_of(shape_of("llama-2-7b"), 512))


def decode(placed: PlacedRequests, uuid: str, num: int, slo: Slo | None = None) -> None:
    for _ in range(num):
        placed.begin(uuid, placed.run(uuid, placed.request(rank=16, slo=slo)))


def test_the_chunks_of_a_long_prompt_break_promises_of_who_decodes_beside_them() -> None:
    """A decode takes 4.5 ms here, and 15 beside a chunk: a prompt of 32,000 tokens takes 155 such steps."""
    placed = chunking("AB")
    decode(placed, "A", 2, Slo(time_per_token_s=0.012))
    decode(placed, "B", 8)
    assert placed.order(rank_aware("h200-7b"), placed.request(rank=16, prompt=100)) == "AB"
    assert placed.order(rank_aware("h200-7b"), placed.request(rank=16, prompt=32_000)) == "BA"


def test_a_request_with_a_promise_stays_away_from_long_prompts_that_come_in() -> None:
    placed = chunking("AB")
    decode(placed, "A", 1)
    counter = placed.run("A", placed.request(rank=16, prompt=32_000))
    decode(placed, "B", 8)
    promised = Slo(time_per_token_s=0.012)
    assert placed.order(rank_aware("h200-7b"), placed.request(rank=16)) == "AB"
    assert placed.order(rank_aware("h200-7b"), placed.request(rank=16, slo=promised)) == "BA"
    placed.begin("A", counter)
    assert placed.order(rank_aware("h200-7b"), placed.request(rank=16, slo=promised)) == "AB", "it has come in"


def test_two_long_prompts_take_turns_so_a_second_one_goes_elsewhere() -> None:
    placed = chunking("AB")
    decode(placed, "A", 2)
    decode(placed, "B", 1)
    placed.run("B", placed.request(rank=16, prompt=32_000))
    assert placed.order(rank_aware("h200-7b"), placed.request(rank=16, prompt=32_000)) == "AB"
    placed.begin("A", placed.run("A", placed.request(rank=16)))
    assert placed.order(rank_aware("h200-7b"), placed.request(rank=16)) == "BA", "a short one waits for one step"


def test_nobody_is_held_up_in_more_steps_than_it_has_tokens() -> None:
    placed = chunking("AB")
    decode(placed, "A", 2, Slo(time_per_token_s=0.030))
    decode(placed, "B", 8)
    assert placed.order(rank_aware("h200-7b"), placed.request(rank=16, prompt=200_000)) == "AB"


def test_by_a_switch_gpus_whose_hosts_have_the_adapter_go_first() -> None:
    placed = PlacedRequests("ABC")
    placed.run("A", placed.request(rank=8, digest="x"))
    placed.cache("B", "x")
    near_first = replace(rank_aware(), adapters_on_host=True)
    assert placed.order(rank_aware(), placed.request(rank=8, digest="x")) == "CBA"
    assert placed.order(near_first, placed.request(rank=8, digest="x")) == "BAC", "A has it on the GPU"
    assert placed.order(near_first, placed.request(rank=8)) == "CBA", "no host has it"
    assert placed.order(near_first, placed.request()) == "CBA", "it has no adapter"
