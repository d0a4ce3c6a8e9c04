import pytest

from punica_frontend.api.caller import ANYONE
from punica_frontend.generation.answers import Frame, Logprob
from punica_frontend.generation.request_plan import RequestPlan
from punica_frontend.tenancy.meter import BilledPrompt
from punica_frontend.tgi.body import Parameters
from punica_frontend.tgi.transcript import Transcript
from punica_serve.protocol import Request, SamplingParams
from punica_serve.text.token_texts import TokenTexts
from punica_serve.text.tokenizer import Tokenizer


@pytest.fixture
def transcript(tokenizer: Tokenizer) -> Transcript:
    request = Request("r", 1, tuple(tokenizer.encode("42")), SamplingParams())
    plan = RequestPlan(request, ANYONE, "r", None, None, (), frozenset({0}), BilledPrompt(1), 0.0)
    return Transcript(tokenizer, TokenTexts(tokenizer), plan, Parameters())


def frame(tokenizer: Tokenizer, text: str, **end: str) -> Frame:
    logprobs = tuple(Logprob(token_id, -1.0, ()) for token_id in tokenizer.encode(text))
    return Frame("r", 0, text=text, logprobs=logprobs, **end)  # type: ignore[arg-type]


def test_tokens_that_come_together_have_an_event_each(transcript: Transcript, tokenizer: Tokenizer) -> None:
    events = transcript.events(frame(tokenizer, "XLé", finish_reason="length"))
    assert [event.token.text for event in events] == ["X", "L", "", "é"]
    assert [event.generated_text for event in events] == [None, None, None, "XLé"]
    assert events[-1].details and events[-1].details.finish_reason == "length"


def test_an_end_that_comes_alone_adds_nothing(transcript: Transcript, tokenizer: Tokenizer) -> None:
    assert len(transcript.events(frame(tokenizer, "XL"))) == 2
    (event,) = transcript.events(frame(tokenizer, "", finish_reason="length"))
    assert (event.token.text, event.token.special, event.generated_text) == ("", True, "XL")
    assert event.details and event.details.generated_tokens == 2
