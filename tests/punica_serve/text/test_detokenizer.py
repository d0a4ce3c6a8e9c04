from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from punica_serve.text.detokenizer import IncrementalDetokenizer
from punica_serve.text.tokenizer import Tokenizer

# Fixtures of the session are shared by all examples on purpose: a Tokenizer is immutable.
relaxed = settings(deadline=None, max_examples=examples(150))


def stream(tokenizer: Tokenizer, prompt: Sequence[int], generated: Sequence[int]) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt)
    return [*(detokenizer.add(token_id) for token_id in generated), detokenizer.finish()]


def in_context(tokenizer: Tokenizer, prompt: Sequence[int], generated: Sequence[int]) -> str:
    return tokenizer.decode([*prompt, *generated])[len(tokenizer.decode(prompt)) :]


@pytest.mark.parametrize("family", ["byte_level", "sentencepiece"])
def test_an_emoji_over_several_tokens_comes_out_whole(family: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(family)
    ids = tokenizer.encode("hi 🦙🦙.")
    assert len(ids) > 6
    pieces = stream(tokenizer, [], ids)
    assert "".join(pieces) == "hi 🦙🦙."
    assert not any("\ufffd" in piece for piece in pieces)
    assert "🦙" in pieces


def test_a_leading_space_after_the_prompt_is_kept(sentencepiece: Tokenizer) -> None:
    prompt, answer = sentencepiece.encode("hi"), sentencepiece.encode("hi hi")
    assert "".join(stream(sentencepiece, prompt, answer)) == " hi hi"
    assert "".join(stream(sentencepiece, [], answer)) == "hi hi"


def test_special_tokens_show_nothing_and_do_not_swallow_a_space(sentencepiece: Tokenizer) -> None:
    hello, special = sentencepiece.encode("hi"), [1, 2] * 10
    assert "".join(stream(sentencepiece, hello + special, [*special, *hello, *special, *hello])) == " hi hi"


def test_bytes_that_are_no_utf8_become_replacements_in_the_end(byte_level: Tokenizer) -> None:
    lead = byte_level.encode("🦙")[0]
    space = byte_level.encode(" x")
    assert "".join(stream(byte_level, [], [lead])) == "\ufffd"
    assert "".join(stream(byte_level, [], [lead, *space])) == "\ufffd x"


def test_undecodable_bytes_do_not_take_back_whole_characters(sentencepiece: Tokenizer) -> None:
    llama, full_stop = sentencepiece.encode("🦙")[-4:], sentencepiece.encode("h.")[-1:]
    assert "".join(stream(sentencepiece, [], [*llama, llama[0], *full_stop])) == "🦙\ufffd."


def test_the_replacement_character_itself_is_a_character(sentencepiece: Tokenizer) -> None:
    assert "".join(stream(sentencepiece, [], sentencepiece.encode("\ufffd🦙"))) == "\ufffd🦙"
    assert "".join(stream(sentencepiece, sentencepiece.encode("\ufffd"), sentencepiece.encode("hi"))) == " hi"


def test_a_prompt_that_ends_inside_a_run_of_bytes(sentencepiece: Tokenizer) -> None:
    prompt, llama = sentencepiece.encode("🦙" * 50), sentencepiece.encode("🦙")[-4:]
    assert "".join(stream(sentencepiece, prompt, llama)) == "🦙"


def test_an_endless_run_of_undecodable_bytes_flows_in_bounded_windows(byte_level: Tokenizer) -> None:
    lead = byte_level.encode("🦙")[0]
    detokenizer = IncrementalDetokenizer(byte_level, [])
    pieces = [detokenizer.add(lead) for _ in range(500)]
    assert len("".join(pieces)) >= 490
    assert len(detokenizer._window) <= 32
    assert len("".join(pieces) + detokenizer.finish()) == 500


@pytest.mark.parametrize("family", ["byte_level", "sentencepiece", "characters"])
def test_any_text_comes_out_as_it_decodes_in_one_go(family: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(family)

    @relaxed
    @given(prompt=st.text(max_size=12), answer=st.text(max_size=60))
    def check(prompt: str, answer: str) -> None:
        prompt_ids, answer_ids = tokenizer.encode(prompt), tokenizer.encode(answer)
        pieces = stream(tokenizer, prompt_ids, answer_ids)
        assert "".join(pieces) == in_context(tokenizer, prompt_ids, answer_ids)
        assert "".join(pieces).count("\ufffd") == answer.count("\ufffd")

    check()


@relaxed
@given(data=st.data())
def test_any_tokens_come_out_as_they_decode_in_one_go(byte_level: Tokenizer, data: st.DataObject) -> None:
    token_ids = st.lists(st.integers(0, byte_level.vocab_size - 1), max_size=60)
    prompt, generated = byte_level.encode(data.draw(st.text(max_size=9))), data.draw(token_ids)
    assert "".join(stream(byte_level, prompt, generated)) == in_context(byte_level, prompt, generated)
