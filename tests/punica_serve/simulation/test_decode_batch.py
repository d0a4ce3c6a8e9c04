"""The columns of a batch agree with counts of each row while rows join, grow, leave and end."""

import random

import pytest

from punica_serve.paging.page_rule import PageRule
from punica_serve.performance.lora_load import adapter_size
from punica_serve.simulation.decode_batch import DecodeBatch
from punica_serve.simulation.row import Row
from punica_serve.simulation.tokens import token_at
from simulated_gpus import VOCAB_SIZE, adapter_ref, make_request

PAGE_SIZE = 4


def _pages(num_tokens: int) -> int:
    return -(-num_tokens // PAGE_SIZE)


def _decoding_row(key: int, num_prompt: int, max_tokens: int) -> Row:
    """A row after its prefill: one token to feed, and pages for its tokens then and one more."""
    row = Row.of(key, make_request(key, num_prompt, max_tokens), VOCAB_SIZE)
    row.num_tokens += 1
    row.num_cached, row.num_pages = num_prompt, _pages(num_prompt + 1)
    return row


@pytest.mark.parametrize("window", [None, 7])
def test_rows_count_as_if_each_were_alone(window: int | None) -> None:
    rng, rule = random.Random(5), PageRule(PAGE_SIZE, window)
    batch = DecodeBatch(rule, vocab_size=VOCAB_SIZE)
    #: Tokens of each row, counted by hand.
    lengths: dict[int, int] = {}
    prompts: dict[int, int] = {}
    ends: dict[int, int] = {}
    pages: dict[int, int] = {}
    for key in range(200):
        if rng.random() < 0.4:
            num_prompt, max_tokens = rng.randint(1, 12), rng.randint(2, 20)
            row = _decoding_row(key, num_prompt, max_tokens)
            batch.join(row)
            lengths[key], prompts[key], ends[key], pages[key] = (
                num_prompt + 1,
                num_prompt,
                num_prompt + max_tokens,
                row.num_pages,
            )
        if lengths and rng.random() < 0.1:
            gone = rng.choice(list(lengths))
            left = batch.leave(gone)
            assert (left.num_tokens, left.num_pages) == (lengths.pop(gone), pages.pop(gone))
        for row in batch.releasing():
            assert (row.num_tokens, row.num_pages) == (lengths[row.key], pages[row.key])
            assert rule.first_kept(row.num_cached) == row.num_released + 1 or row.joined == row.num_released == 0
            row.num_released = rule.first_kept(row.num_cached)
            batch.join(row)
        due = [key for key, length in lengths.items() if _pages(length) > pages[key]]
        assert batch.num_pages_due == len(due)
        assert [row.key for row in batch.rows_due()] == sorted(due)
        assert batch.num_context_tokens == sum(lengths.values())
        released = [rule.first_kept(length - 1) for length in lengths.values()]
        assert batch.num_pages == sum(pages.values()) - sum(released)
        batch.grow()
        pages |= {key: pages[key] + 1 for key in due}
        keys, positions, token_ids, ended = batch.advance()
        assert dict(zip(keys, positions, strict=True)) == {key: lengths[key] - prompts[key] for key in lengths}
        assert list(token_ids) == [token_at(key, place, VOCAB_SIZE) for key, place in zip(keys, positions, strict=True)]
        lengths = {key: length + 1 for key, length in lengths.items()}
        assert {row.key for row in ended} == {key for key, length in lengths.items() if length == ends[key]}
        assert all(row.num_pages == pages[row.key] for row in ended)
        for row in ended:
            del lengths[row.key], pages[row.key]
        assert len(batch) == len(lengths)


def test_different_adapters_are_counted_once() -> None:
    batch = DecodeBatch(PageRule(PAGE_SIZE), vocab_size=VOCAB_SIZE)
    for key, name in enumerate(("a", "a", "b")):
        row = _decoding_row(key, 3, 5)
        row.adapter = adapter_ref(name)
        row.adapter_size = adapter_size(row.adapter)
        batch.join(row)
    assert batch.lora.num_adapters_with([(None, None)]) == batch.lora.num_adapters_with([("a", None)]) == 2
    assert batch.lora.num_adapters_with([("c", None)]) == 3
    batch.leave(2)
    assert batch.lora.num_adapters_with([("b", None)]) == 2
    assert batch.lora.num_adapters_with([(None, None)]) == 1
