from punica_frontend.scheduler_link.delivery_order import first_rows
from punica_serve.protocol import Deliveries

TOKENS = Deliveries(handles=(7, 8, 9, 9), positions=(3, 0, 5, 6), token_ids=(30, 10, 50, 60))


def test_requests_that_begin_or_end_come_first_with_all_their_tokens() -> None:
    first, later = first_rows(TOKENS, {9})
    assert list(first) == [(8, 0, 10, None), (9, 5, 50, None), (9, 6, 60, None)]
    assert list(later) == [(7, 3, 30, None)]


def test_steps_in_which_none_begins_or_ends_are_not_divided() -> None:
    first, later = first_rows(Deliveries((7, 8), (3, 0), (30, 10), offset=2), set())
    assert list(first) == [(7, 5, 30, None), (8, 2, 10, None)] and not later


def test_an_end_without_a_token_divides_nothing() -> None:
    first, later = first_rows(Deliveries((7,), (3,), (30,)), {9})
    assert not list(first) and list(later) == [(7, 3, 30, None)]
