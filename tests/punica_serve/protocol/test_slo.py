import math

import msgspec
import pytest

from punica_serve.errors import ProtocolError
from punica_serve.protocol import (
    NO_PROMISES,
    AddRequest,
    Decoder,
    FrontendToScheduler,
    PromiseCounts,
    PromisesJudged,
    Request,
    SamplingParams,
    Slo,
    encode,
)


def test_own_promises_win_over_the_defaults_one_by_one() -> None:
    assert Slo(1.0).over(Slo(2.0, 3.0)) == Slo(1.0, 3.0)
    assert Slo(None, 4.0).over(Slo(2.0, 3.0)) == Slo(2.0, 4.0)
    assert Slo().over(Slo()) == Slo()


@pytest.mark.parametrize("promised_s", [0.0, -1.0, math.nan, math.inf, 2e6])
def test_no_frame_promises_what_no_clock_can_hold(promised_s: float) -> None:
    with pytest.raises(ValueError, match="not above 0"):
        Slo(first_token_s=promised_s)
    with pytest.raises(ValueError, match="not above 0"):
        Slo(time_per_token_s=promised_s)


def test_promises_travel_with_their_request() -> None:
    message = AddRequest(1, Request("r", 0, (1,), SamplingParams(), slo=Slo(0.5, 0.02)))
    assert Decoder(FrontendToScheduler)(encode(message)) == message


def test_a_frame_with_an_impossible_promise_is_refused() -> None:
    message = encode(AddRequest(1, Request("r", 0, (1,), SamplingParams(), slo=Slo(0.5))))
    with pytest.raises(ProtocolError, match="is not above 0"):
        Decoder(FrontendToScheduler)(message.replace(encode_double(0.5), encode_double(-0.5)))


def encode_double(value: float) -> bytes:
    return msgspec.msgpack.encode(value)


def test_counts_add_up_and_say_whether_there_are_any() -> None:
    total = PromiseCounts(1, 2, 3, 4) + PromiseCounts(10, 20, 30, 40)
    assert total == PromiseCounts(11, 22, 33, 44)
    assert total and not NO_PROMISES and not NO_PROMISES + NO_PROMISES
    assert Decoder(FrontendToScheduler)(encode(PromisesJudged(total))) == PromisesJudged(total)
