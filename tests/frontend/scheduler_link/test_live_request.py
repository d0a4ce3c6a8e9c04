from collections.abc import Callable

import pytest

from punica_frontend.api.errors import SlowReader
from punica_frontend.scheduler_link.live_request import (
    MAX_DELIVERY_BYTES,
    TOKEN_BYTES,
    Backlog,
    Delivery,
    LiveRequest,
)
from punica_serve.errors import ProtocolError
from punica_serve.protocol import Ending, Request, SamplingParams, TokenLogprobs, WireError


@pytest.fixture
def live() -> LiveRequest:
    return make_live(Backlog())


def make_live(backlog: Backlog, on_ready: Callable[[], None] = lambda: None) -> LiveRequest:
    return LiveRequest(1, Request("r", 1, (1, 2), SamplingParams()), None, on_ready, backlog, lambda gpu_s: None)


def accept(live: LiveRequest, position: int, *token_ids: int) -> None:
    """Tokens from ``position`` on."""
    for offset, token_id in enumerate(token_ids):
        live.accept(position + offset, token_id)


def test_untaken_tokens_come_out_together() -> None:
    calls: list[None] = []
    live = make_live(Backlog(), lambda: calls.append(None))
    logprobs = (TokenLogprobs(-1.0), TokenLogprobs(-2.0), TokenLogprobs(-3.0))
    for position in range(3):
        live.accept(position, 10 + position, logprobs[position])
        assert len(calls) == 1
    assert live.take() == Delivery(0, (10, 11, 12), logprobs)
    live.accept(3, 13)
    assert len(calls) == 2
    live.end(Ending(1, 4, "length"))
    assert live.take() == Delivery(3, (13,), finish_reason="length")


def test_tokens_that_came_before_are_dropped(live: LiveRequest) -> None:
    accept(live, 0, 10, 11)
    accept(live, 0, 10)
    accept(live, 1, 11, 12)
    assert live.take().token_ids == (10, 11, 12)


def test_a_late_end_of_a_shorter_stream_ends_nothing(live: LiveRequest) -> None:
    accept(live, 0, 10, 11)
    live.end(Ending(1, 1, "stop"))
    assert not live.is_finished
    live.end(Ending(1, 2, "stop"))
    assert live.is_finished


def test_the_end_comes_with_the_last_token_and_a_late_end_keeps_no_token_back() -> None:
    ready: list[None] = []
    live = make_live(Backlog(), lambda: ready.append(None))
    live.accept(0, 10, is_last=True)
    assert not ready
    live.end(Ending(0, 0, "length"))
    assert len(ready) == 1 and live.take().token_ids == (10,)
    live.accept(1, 11, is_last=True)
    live.end(Ending(0, 2, "length"))
    assert len(ready) == 2
    delivery = live.take()
    assert (delivery.token_ids, delivery.finish_reason) == ((11,), "length")


def test_a_gap_is_a_broken_link(live: LiveRequest) -> None:
    with pytest.raises(ProtocolError, match="position 1 instead of 0"):
        live.accept(1, 10)


def test_an_end_of_more_tokens_than_have_come_is_a_broken_link(live: LiveRequest) -> None:
    live.accept(0, 10)
    with pytest.raises(ProtocolError, match="position 2 instead of 1"):
        live.end(Ending(1, 2, "stop"))
    assert not live.is_finished


def test_an_error_ends_a_stream_of_any_length(live: LiveRequest) -> None:
    accept(live, 0, 10, 11)
    error = WireError("request_failed", "gave up")
    live.end(Ending(1, 0, "error", error))
    assert live.take() == Delivery(0, (10, 11), finish_reason="error", error=error)


def test_a_failure_ends_the_request_after_its_tokens(live: LiveRequest) -> None:
    error = WireError("cluster_unavailable", "gone")
    live.accept(0, 10)
    live.fail(error)
    live.accept(1, 11)
    live.end(Ending(1, 2, "stop"))
    assert live.take() == Delivery(0, (10,), finish_reason="error", error=error)


def test_it_is_added_again_with_what_has_come_taken_or_not(live: LiveRequest) -> None:
    live.accept(0, 10)
    live.take()
    live.accept(1, 11)
    assert live.resumed() == Request("r", 1, (1, 2), SamplingParams(), None, (10, 11))


def test_the_backlog_counts_all_requests_of_a_reader() -> None:
    backlog = Backlog(max_bytes=8 * TOKEN_BYTES)
    first, second = make_live(backlog), make_live(backlog)
    accept(first, 0, 10, 11)
    second.accept(0, 20, TokenLogprobs(-1.0, (20, 21), (-1.0, -2.0)))
    assert backlog.num_bytes == 6 * TOKEN_BYTES
    accept(first, 2, 12, 13)
    with pytest.raises(SlowReader, match="reads too slowly"):
        second.accept(1, 21)
    first.take()
    second.accept(1, 21)
    assert second.take().token_ids == (20, 21)
    assert backlog.num_bytes == 0


def test_much_that_waits_comes_out_in_parts_the_end_with_the_last() -> None:
    calls: list[None] = []
    backlog = Backlog()
    live = make_live(backlog, lambda: calls.append(None))
    logprobs = TokenLogprobs(-1.0, tuple(range(20)), (-1.0,) * 20)
    num_tokens, num_together = 500, MAX_DELIVERY_BYTES // (22 * TOKEN_BYTES)
    for position in range(num_tokens):
        live.accept(position, position, logprobs)
    live.end(Ending(1, num_tokens, "length"))
    parts: list[Delivery] = []
    while len(calls) > len(parts):
        parts.append(live.take())
        live.offer_rest()
    assert [len(part.token_ids) for part in parts] == [num_together, num_together, num_tokens - 2 * num_together]
    assert [token_id for part in parts for token_id in part.token_ids] == list(range(num_tokens))
    assert [part.position for part in parts] == [0, num_together, 2 * num_together]
    assert all(len(part.logprobs) == len(part.token_ids) for part in parts)
    assert [part.finish_reason for part in parts] == [None, None, "length"]
    assert backlog.num_bytes == 0


def test_an_error_leaves_nothing_of_much_that_waits() -> None:
    backlog = Backlog()
    live = make_live(backlog)
    accept(live, 0, *range(2 * MAX_DELIVERY_BYTES // TOKEN_BYTES))
    live.fail(WireError("slow_reader", "too slow"))
    assert live.take().error and backlog.num_bytes == 0


def test_a_reader_that_is_forgotten_is_told_nothing_and_holds_up_no_other() -> None:
    ready: list[None] = []
    backlog = Backlog()
    live = make_live(backlog, lambda: ready.append(None))
    accept(live, 0, 10)
    live.take()
    live.forget_reader()
    live.end(Ending(1, 1, "length"))
    assert len(ready) == 1 and backlog.num_bytes == 0
