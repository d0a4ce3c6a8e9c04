"""Pages of rows that start, decode and leave, with the books audited after each change."""

from punica_serve.protocol import KvWindow
from punica_serve.simulation.row import Row
from punica_serve.simulation.row_pages import RowPages
from simulated_gpus import VOCAB_SIZE, gpu_info, make_request


def _row(number: int, num_prompt: int) -> Row:
    return Row.of(number, make_request(number, num_prompt=num_prompt), VOCAB_SIZE)


def test_pages_of_decodes_come_back_with_the_rows_that_got_them() -> None:
    pages, rows = RowPages(gpu_info()), [_row(0, 7), _row(1, 4)]
    for row in rows:
        pages.admit(row)
    assert [row.num_pages for row in rows] == [2, 2] and pages.num_free == 28
    pages.grow(3)
    pages.check_invariants(rows, num_held=7)
    rows[0].num_pages += 2  # the decode batch counts whose they are
    rows[1].num_pages += 1
    pages.release(rows[0])
    assert (pages.num_free, rows[0].num_pages) == (29, 0)
    pages.check_invariants(rows, num_held=3)
    pages.release(rows[1])
    assert pages.num_free == 32


def test_a_row_behind_a_window_takes_its_pages_chunk_by_chunk() -> None:
    pages, row = RowPages(gpu_info(window=KvWindow(8, 4))), _row(0, 40)
    pages.admit(row)
    num_at_start = row.num_pages
    assert num_at_start < 10
    row.num_cached = 4 * num_at_start
    ((lacking, missing),) = pages.lacking([row])
    assert lacking is row and missing > 0
    assert pages.prepare(row) and not pages.lacking([row])
    pages.check_invariants([row], num_held=row.num_pages - row.num_released)
    assert row.num_released > 0


def test_a_row_that_lacks_more_pages_than_are_free_is_not_prepared() -> None:
    pages, row = RowPages(gpu_info(window=KvWindow(8, 4))), _row(0, 40)
    pages.admit(row)
    row.num_cached = 4 * row.num_pages
    pages.grow(pages.num_free)
    pages.prefixes.give_back(row)
    pages.grow(pages.num_free)
    assert not pages.prepare(row)
