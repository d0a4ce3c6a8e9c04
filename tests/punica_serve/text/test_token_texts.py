import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from punica_serve.text.token_texts import TokenTexts
from punica_serve.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    """Llama 3's kind: letters stand for bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({"</s>": 0} | {c: i for i, c in enumerate(letters, 1)} | {"Ġx": 300}, []))
    backend.add_special_tokens(["</s>"])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend)


@pytest.fixture(scope="module")
def byte_fallback() -> Tokenizer:
    """Llama 2's kind: a leading space is a letter of its own, and unknown characters are spelled byte by byte."""
    vocabulary = {"<unk>": 0, "a": 1, "▁a": 2, "▁the": 3} | {f"<0x{value:02X}>": 4 + value for value in range(256)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(backend)


def test_bytes_of_a_vocabulary_of_letters(byte_level: Tokenizer) -> None:
    texts = TokenTexts(byte_level)
    for value in range(256):
        ids = byte_level.encode(bytes([value]).decode("latin-1")) if value < 128 else None
        if ids:
            assert texts.bytes_of(ids[0]) == [value]
    llama = byte_level.encode("🦙")
    assert [texts.text(token_id) for token_id in llama] == ["\ufffd"] * 4
    assert bytes(byte for token_id in llama for byte in texts.bytes_of(token_id) or ()).decode() == "🦙"
    assert (texts.text(300), texts.bytes_of(300)) == (" x", [32, ord("x")])


def test_special_tokens_have_names(byte_level: Tokenizer) -> None:
    texts = TokenTexts(byte_level)
    assert (texts.text(0), texts.bytes_of(0)) == ("</s>", list(b"</s>"))


def test_an_id_that_is_no_token_is_nothing(byte_level: Tokenizer) -> None:
    assert (TokenTexts(byte_level).text(9999), TokenTexts(byte_level).bytes_of(9999)) == ("", [])


def test_a_leading_space_is_not_lost(byte_fallback: Tokenizer) -> None:
    texts = TokenTexts(byte_fallback)
    assert [texts.text(token_id) for token_id in (1, 2, 3)] == ["a", " a", " the"]


def test_bytes_that_stand_for_themselves(byte_fallback: Tokenizer) -> None:
    texts = TokenTexts(byte_fallback)
    assert (texts.text(4 + 0xF0), texts.bytes_of(4 + 0xF0)) == ("\ufffd", [0xF0])


def test_the_demos_tokenizer() -> None:
    import punica_serve.demo

    folder = Path(punica_serve.demo.__file__).parent / "model"
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    texts = TokenTexts(Tokenizer.from_folder(folder))
    assert sorted(tuple(texts.bytes_of(token_id) or ()) for token_id in vocabulary.values() if token_id < 256) == [
        (value,) for value in range(256)
    ]
