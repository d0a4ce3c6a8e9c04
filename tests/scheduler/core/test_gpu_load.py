"""The sums of a working set: what each request adds, it takes away."""

from math import inf

from placed_requests import PlacedRequests
from punica_serve.performance.lora_load import LoraLoad
from punica_serve.protocol import Slo


def test_ranks_count_for_each_row_and_pages_for_each_adapter() -> None:
    placed = PlacedRequests("A")
    sums = placed.gpus["A"].load_sums
    first = placed.run("A", placed.request(rank=16, digest="x"))
    second = placed.run("A", placed.request(rank=16, digest="x"))
    third = placed.run("A", placed.request(rank=64))
    placed.run("A", placed.request())
    assert sums.lora.load == LoraLoad(num_rows=3, sum_ranks=96, max_rank=64, num_pages=2 + 8)
    placed.end("A", third)
    placed.end("A", first)
    assert sums.lora.load == LoraLoad(num_rows=1, sum_ranks=16, max_rank=16, num_pages=2)
    placed.end("A", second)
    assert sums.lora.load == LoraLoad()


def test_prefills_are_due_until_the_first_token() -> None:
    placed = PlacedRequests("A")
    sums = placed.gpus["A"].load_sums
    first, second = (placed.run("A", placed.request(prompt=prompt)) for prompt in (5, 7))
    assert [due.record.num_tokens for due in sums.prefills] == [5, 7]
    placed.begin("A", first)
    assert [due.record.num_tokens for due in sums.prefills] == [7]
    placed.end("A", second)
    placed.end("A", first)
    assert not len(sums.prefills)


def test_the_tightest_promise_is_that_of_those_who_are_there() -> None:
    placed = PlacedRequests("A")
    sums = placed.gpus["A"].load_sums
    loose, tight, equal = (
        placed.run("A", placed.request(slo=Slo(time_per_token_s=promised_s))) for promised_s in (0.2, 0.1, 0.1)
    )
    placed.run("A", placed.request(slo=Slo(first_token_s=0.01)))
    assert sums.tightest_s == 0.1
    placed.end("A", tight)
    assert sums.tightest_s == 0.1
    placed.end("A", equal)
    assert sums.tightest_s == 0.2
    placed.end("A", loose)
    assert sums.tightest_s == inf
