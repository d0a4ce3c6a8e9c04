"""A tokenizer of bytes: each is a token, and token 0 is </s>."""

from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from punica_serve.text.chat_template import ChatTemplate
from punica_serve.text.tokenizer import Tokenizer

EOS = 0


def byte_tokenizer(chat_template: ChatTemplate | None = None) -> Tokenizer:
    return Tokenizer(_backend(), chat_template)


def save_byte_tokenizer(folder: Path) -> Path:
    """Makes it a folder that a tokenizer can be read from."""
    _backend().save(str(folder / "tokenizer.json"))
    return folder


def _backend() -> tokenizers.Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({"</s>": EOS} | {c: i for i, c in enumerate(letters, 1)}, []))
    backend.add_special_tokens(["</s>"])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend
