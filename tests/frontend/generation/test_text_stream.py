import msgspec
import pytest

from punica_frontend.generation.answers import Frame, Logprob, TokenUsage, TopLogprob, answer
from punica_frontend.generation.text_stream import TextStream
from punica_frontend.scheduler_link.live_request import Delivery
from punica_serve.protocol import FinishReason, Request, SamplingParams, TokenLogprobs
from punica_serve.text.tokenizer import Tokenizer


class Stream:
    """Feeds text, a token for each byte, in deliveries of a chosen size."""

    def __init__(self, tokenizer: Tokenizer, *stops: str, logprobs: int | None = None) -> None:
        request = Request("r", 1, tuple(tokenizer.encode("42")), SamplingParams(logprobs=logprobs))
        self._tokenizer = tokenizer
        self._stream = TextStream(tokenizer, request, answer_id="a", stops=stops, end_ids=frozenset({0}))

    def feed(self, text: str, end: FinishReason | None = None, *, eos: bool = False) -> Frame:
        ids = self._tokenizer.encode(text) + [0] * eos
        return self._stream.feed(Delivery(self._stream.num_tokens, tuple(ids), finish_reason=end))

    def feed_delivery(self, delivery: Delivery) -> Frame:
        return self._stream.feed(delivery)


def test_frames_say_where_they_start_and_the_last_has_the_usage(tokenizer: Tokenizer) -> None:
    stream = Stream(tokenizer)
    assert stream.feed("XL") == Frame("a", 0, tuple(tokenizer.encode("XL")), "XL")
    assert stream.feed("II", "length") == Frame(
        "a", 2, tuple(tokenizer.encode("II")), "II", "length", TokenUsage(2, 4, 6)
    )


def test_an_unfinished_character_waits_for_its_last_byte(tokenizer: Tokenizer) -> None:
    stream = Stream(tokenizer)
    llama = tokenizer.encode("🦙")
    frames = [stream.feed_delivery(Delivery(i, (token_id,))) for i, token_id in enumerate(llama)]
    assert [frame.text for frame in frames] == ["", "", "", "🦙"]
    assert stream.feed_delivery(Delivery(4, (llama[0],), finish_reason="length")).text == "\ufffd"


def test_a_stop_string_ends_the_answer_with_the_token_that_completes_it(tokenizer: Tokenizer) -> None:
    stream = Stream(tokenizer, "END")
    assert stream.feed("so E").text == "so "
    frame = stream.feed("NDLESS")
    assert (frame.text, frame.finish_reason, len(frame.token_ids)) == ("", "stop", 2)
    assert frame.usage == TokenUsage(2, 6, 8)


def test_text_held_back_comes_at_the_end(tokenizer: Tokenizer) -> None:
    stream = Stream(tokenizer, "END")
    assert stream.feed("so E").text == "so "
    assert stream.feed("N", "length").text == "EN"


def test_a_stop_string_may_be_complete_at_the_very_end_only(tokenizer: Tokenizer) -> None:
    stream = Stream(tokenizer, "\ufffd")
    frame = stream.feed_delivery(Delivery(0, tuple(tokenizer.encode("x🦙")[:2]), finish_reason="length"))
    assert (frame.text, frame.finish_reason) == ("x", "stop")


def test_the_token_that_ends_the_answer_has_no_text(tokenizer: Tokenizer) -> None:
    letter = tokenizer.encode("q")[0]
    request = Request("r", 1, (1,), SamplingParams(stop_token_ids=(letter,)))
    stream = TextStream(tokenizer, request, answer_id="a", stops=(), end_ids=frozenset({0, letter}))
    frame = stream.feed(Delivery(0, tuple(tokenizer.encode("hiq")), finish_reason="stop"))
    assert (frame.text, len(frame.token_ids)) == ("hi", 3)


@pytest.mark.parametrize("stops", [(), ("I",)])
def test_logprobs_go_with_the_tokens_that_count(tokenizer: Tokenizer, stops: tuple[str, ...]) -> None:
    stream = Stream(tokenizer, *stops, logprobs=1)
    x, i = tokenizer.encode("XI")
    of_tokens = (TokenLogprobs(-0.5, (i,), (-0.25,)), TokenLogprobs(-1.0), TokenLogprobs(-1.5))
    frame = stream.feed_delivery(Delivery(0, (x, i, i), of_tokens, "length"))
    expected = [Logprob(x, -0.5, (TopLogprob(i, -0.25),)), Logprob(i, -1.0, ()), Logprob(i, -1.5, ())]
    assert frame.logprobs == tuple(expected[: 2 if stops else 3])


def test_frames_join_to_an_answer(tokenizer: Tokenizer) -> None:
    stream = Stream(tokenizer)
    whole = answer([stream.feed("XL"), stream.feed("II", "stop", eos=True)], lora_id="roman")
    assert (whole.text, whole.finish_reason, whole.lora_id) == ("XLII", "stop", "roman")
    assert whole.token_ids == (*tokenizer.encode("XLII"), 0)
    assert whole.usage == TokenUsage(2, 5, 7)
    assert whole.logprobs is msgspec.UNSET
