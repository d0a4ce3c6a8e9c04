"""The balanced list of decode work: every token once, in order, in equal shares."""

from itertools import islice, pairwise

import numpy as np
import pytest

from punica_kernels.decode_table import ITEM_WORDS, DecodeTableShape, Words, max_slots


def lay_out(shape: DecodeTableShape, lengths: list[int]) -> Words:
    tokens = np.array(lengths, np.int32)
    indptr = np.concatenate([[0], np.cumsum(-(-tokens // shape.page_size))]).astype(np.int32)
    return shape.lay_out(tokens, indptr, np.arange(100, 100 + indptr[-1], dtype=np.int32))


@pytest.mark.parametrize("num_programs", [1, 3, 16, 200])
@pytest.mark.parametrize("lengths", [[1], [16, 16], [1, 1500, 17, 1, 230, 33], [700] * 32, [1] * 64])
def test_items_cover_every_token_once(lengths: list[int], num_programs: int) -> None:
    shape = DecodeTableShape(len(lengths), num_programs, 3000, 16)
    words = lay_out(shape, lengths)
    assert len(words) <= shape.num_words
    starts = words[: num_programs + 1].tolist()
    num_items = starts[-1]
    assert starts[0] == 0
    assert starts == sorted(starts)
    assert num_items <= shape.max_items
    items = words[shape.items_start :][: num_items * ITEM_WORDS].reshape(-1, ITEM_WORDS)[:, :6].tolist()
    pages = iter(range(sum(-(-length // 16) for length in lengths)))
    slots: list[int] = []
    for row, length in enumerate(lengths):
        own = [item for item in items if item[0] == row]
        assert sum(tokens for _, _, tokens, _, _, _ in own) == length
        assert {(first_slot, num_items) for *_, first_slot, num_items in own} == {(own[0][4], len(own))}
        if len(own) > 1:
            slots += [slot for _, _, _, slot, _, _ in own]
            assert own[0][4] == own[0][3]
        for _, first_page, tokens, *_ in own:
            assert list(islice(pages, -(-tokens // 16)))[:1] == [first_page]
    assert slots == list(range(len(slots)))
    assert len(slots) <= max_slots(num_programs)
    assert words[shape.pages_start :].tolist() == [100 + page for page in range(len(words) - shape.pages_start)]


def test_programs_have_equal_shares() -> None:
    shape = DecodeTableShape(32, 16, 4000, 16)
    lengths = np.random.default_rng(0).integers(1, 1500, 32).tolist()
    words = lay_out(shape, lengths)
    starts, items = words[:17], words[shape.items_start : shape.pages_start].reshape(-1, ITEM_WORDS)
    shares = [-(-items[start:end, 2] // 16).sum() for start, end in pairwise(starts)]
    assert max(shares) - min(shares) <= 1


def test_what_does_not_fit_is_refused() -> None:
    shape = DecodeTableShape(2, 4, 10, 16)
    with pytest.raises(ValueError, match="do not fit"):
        lay_out(shape, [1])
    with pytest.raises(ValueError, match="do not fit"):
        lay_out(shape, [100, 100])
    with pytest.raises(ValueError, match="one token at least"):
        lay_out(shape, [0, 3])
    with pytest.raises(ValueError, match="a page or more"):
        DecodeTableShape(2, 0, 10, 16)
