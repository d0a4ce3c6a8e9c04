"""Chunks from a template are the bytes of the chunks' structs."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from punica_frontend.generation.answers import usage
from punica_frontend.openai.chat_answers import ChatChunk, ChunkChoice, Delta
from punica_frontend.openai.chunk_template import ChunkTemplate
from punica_frontend.openai.completion_answers import CompletionChoice, completion
from punica_frontend.openai.head import Head
from punica_frontend.openai.stream_usage import ChunkUsage

Make = Callable[[str, ChunkUsage], msgspec.Struct]

MODELS = st.one_of(st.text(), st.sampled_from(["\x00", '"usage":null', '"\x00"', '","text":"\x00"']))


def of_completion(model: str, index: int) -> Make:
    return lambda text, told: completion(Head("cmpl-1", 7, model), [CompletionChoice(index, text)], told)


def of_chat(model: str, index: int) -> Make:
    return lambda text, told: ChatChunk("chatcmpl-1", 7, model, [ChunkChoice(index, Delta(text))], told)


@pytest.mark.parametrize("make", [of_completion, of_chat])
@pytest.mark.parametrize("kind", ["absent", "null", "continuous"])
@settings(max_examples=examples(30))
@given(model=MODELS, index=st.integers(0, 127), texts=st.lists(st.text(min_size=1), min_size=1, max_size=4))
def test_a_chunk_is_the_same_from_a_template(
    make: Callable[[str, int], Make], kind: str, model: str, index: int, texts: list[str]
) -> None:
    def told(count: int) -> ChunkUsage:
        return {"absent": msgspec.UNSET, "null": None, "continuous": usage(9, count)}[kind]

    chunk = make(model, index)
    template = ChunkTemplate(chunk, told(0))
    for count, text in enumerate(texts):
        json = msgspec.json.encode(chunk(text, told(count)))
        assert template.json(text, told(count)) == json
        assert template.encoder(told, (b"<", b">"))(7, text, count) == b"<" + json + b">"
