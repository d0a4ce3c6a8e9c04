import pytest
from hypothesis import given
from hypothesis import strategies as st

from punica_serve.text.generated_text import GeneratedText, TextPiece
from punica_serve.text.tokenizer import Tokenizer


def generated(tokenizer: Tokenizer, *stops: str) -> GeneratedText:
    return GeneratedText(tokenizer, [], stops=stops, end_ids=frozenset({1}))


def test_tokens_after_a_stop_string_do_not_count(characters: Tokenizer) -> None:
    text = generated(characters, "b")
    assert text.feed(characters.encode("abc"), None) == TextPiece("a", 2, "stop")


def test_what_was_held_back_comes_at_the_end(characters: Tokenizer) -> None:
    text = generated(characters, "bcd")
    assert text.feed(characters.encode("abc"), None) == TextPiece("a", 3, None)
    assert text.feed([], "length") == TextPiece("bc", 0, "length")


def test_the_token_that_ends_the_request_has_no_text(characters: Tokenizer) -> None:
    assert generated(characters).feed([*characters.encode("ab"), 1], "stop") == TextPiece("ab", 3, "stop")


@pytest.mark.parametrize("stop", ["\ufffd", "x\ufffd"])
def test_an_unfinished_character_may_complete_a_stop_string_in_the_end(byte_level: Tokenizer, stop: str) -> None:
    ids = byte_level.encode("x🦙")[:2]
    text = generated(byte_level, stop)
    assert text.feed(ids, "length") == TextPiece("x"[: 2 - len(stop)], 2, "stop")


@given(text=st.text(max_size=40), cut=st.integers(0, 40))
def test_the_cut_into_deliveries_does_not_matter(byte_level: Tokenizer, text: str, cut: int) -> None:
    ids = byte_level.encode(text)
    pieces = generated(byte_level)
    joined = pieces.feed(ids[:cut], None).text + pieces.feed(ids[cut:], "length").text
    assert joined == byte_level.decode(ids)
