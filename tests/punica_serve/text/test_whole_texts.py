from punica_serve.text.tokenizer import Tokenizer


def test_tokens_of_whole_characters_have_their_texts(byte_level: Tokenizer) -> None:
    for token_id in byte_level.encode(" hi é."):
        assert byte_level.whole_texts[token_id] in (None, byte_level.decode([token_id]))
    (full_stop,) = byte_level.encode(".")
    assert byte_level.whole_texts[full_stop] == "."


def test_parts_of_characters_special_and_unknown_tokens_have_none(byte_level: Tokenizer) -> None:
    parts = byte_level.encode("\U0001f999")
    assert len(parts) > 1
    for token_id in (*parts, *byte_level.special_ids, byte_level.vocab_size + 9):
        assert byte_level.whole_texts[token_id] is None


def test_other_decoders_have_none(sentencepiece: Tokenizer) -> None:
    assert not any(sentencepiece.whole_texts[token_id] for token_id in sentencepiece.encode("hi there"))
