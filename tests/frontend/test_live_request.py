import pytest

from punica_frontend.live_request import LiveRequest
from punica_serve.errors import ProtocolError
from punica_serve.protocol import Delivery, Request, SamplingParams, TokenLogprobs, WireError


@pytest.fixture
def live() -> LiveRequest:
    return LiveRequest(Request("r", 1, (1, 2), SamplingParams()))


def test_deliveries_that_nobody_took_are_merged(live: LiveRequest) -> None:
    assert not live.ready.is_set()
    live.accept(Delivery("r", 0, (10,), (TokenLogprobs(-1.0),)))
    live.accept(Delivery("r", 1, (11, 12), (TokenLogprobs(-2.0), TokenLogprobs(-3.0))))
    assert live.ready.is_set()
    logprobs = (TokenLogprobs(-1.0), TokenLogprobs(-2.0), TokenLogprobs(-3.0))
    assert live.take() == Delivery("r", 0, (10, 11, 12), logprobs)
    assert not live.ready.is_set()
    live.accept(Delivery("r", 3, (13,), finish_reason="length"))
    assert live.take() == Delivery("r", 3, (13,), finish_reason="length")


def test_tokens_that_came_before_are_dropped(live: LiveRequest) -> None:
    live.accept(Delivery("r", 0, (10, 11)))
    live.accept(Delivery("r", 0, (10,)))
    live.accept(Delivery("r", 1, (11, 12)))
    assert live.take().token_ids == (10, 11, 12)


def test_a_late_end_of_an_earlier_position_ends_nothing(live: LiveRequest) -> None:
    live.accept(Delivery("r", 0, (10, 11)))
    live.accept(Delivery("r", 1, finish_reason="stop"))
    assert not live.is_finished
    live.accept(Delivery("r", 2, finish_reason="stop"))
    assert live.is_finished


def test_a_gap_is_a_broken_link(live: LiveRequest) -> None:
    with pytest.raises(ProtocolError, match="position 1 instead of 0"):
        live.accept(Delivery("r", 1, (10,)))


def test_a_failure_ends_the_request_after_its_tokens(live: LiveRequest) -> None:
    live.accept(Delivery("r", 0, (10,)))
    live.fail(WireError("cluster_unavailable", "gone"))
    live.accept(Delivery("r", 1, (11,)))
    last = live.take()
    assert (last.token_ids, last.finish_reason, last.error) == (
        (10,),
        "error",
        WireError("cluster_unavailable", "gone"),
    )


def test_it_is_added_again_with_what_has_come_taken_or_not(live: LiveRequest) -> None:
    live.accept(Delivery("r", 0, (10,)))
    live.take()
    live.accept(Delivery("r", 1, (11,)))
    assert live.resumed() == Request("r", 1, (1, 2), SamplingParams(), None, (10, 11))
