import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from punica_kernels.segments import SegmentIndex


def tiles_of(index: SegmentIndex) -> dict[int, list[int]]:
    """row -> pages, read back from the tiles; fails if a row is in two tiles."""
    pages_of_row: dict[int, list[int]] = {}
    for group in index.tile_groups:
        assert group.rows.shape == (len(group.pages), group.tile_rows)
        for rows, pages in zip(group.rows.tolist(), group.pages.tolist(), strict=True):
            for row in rows:
                assert row not in pages_of_row
                pages_of_row[row] = pages
    return pages_of_row


@given(st.lists(st.tuples(st.integers(0, 200), st.lists(st.integers(0, 99), max_size=9)), max_size=12))
def test_every_row_with_lora_is_in_one_tile_of_its_adapter(segments: list[tuple[int, list[int]]]) -> None:
    indptr: list[int] = [0]
    expected: dict[int, list[int]] = {}
    for num_rows, pages in segments:
        if pages:
            expected |= dict.fromkeys(range(indptr[-1], indptr[-1] + num_rows), pages)
        indptr.append(indptr[-1] + num_rows)

    index = SegmentIndex.build(indptr, [pages for _, pages in segments])

    assert tiles_of(index) == expected
    assert index.num_rows == indptr[-1]
    assert index.max_pages == max((len(pages) for pages in expected.values()), default=0)
    assert index.has_lora == bool(expected)


def test_tiles_are_grouped_by_height_and_pages() -> None:
    index = SegmentIndex.build([0, 1, 2, 3, 88], [[7], [3], [1, 2], [5]])
    shapes = {(group.tile_rows, *group.pages.shape) for group in index.tile_groups}
    assert shapes == {(1, 3, 1), (1, 1, 2), (64, 1, 1), (16, 1, 1), (4, 1, 1)}


def test_an_empty_batch_has_no_lora() -> None:
    assert not SegmentIndex.build([0], []).has_lora


@pytest.mark.parametrize(
    ("indptr", "pages"), [([0, 3], []), ([], []), ([1, 3], [[0]]), ([0, 3, 2], [[0], [1]]), ([0, 1, 2], [[0]])]
)
def test_indptr_that_cannot_be_is_refused(indptr: list[int], pages: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="indptr"):
        SegmentIndex.build(indptr, pages)


def test_the_index_lies_on_the_device_it_is_built_for() -> None:
    index = SegmentIndex.build([0, 5], [[0, 1]], device="meta")
    assert {tensor.device for group in index.tile_groups for tensor in (group.rows, group.pages)} == {
        torch.device("meta")
    }
