"""A model folder's tokenizer and chat template, without transformers.

Encoding, and decoding of long texts, release the GIL and share no mutable state, so a Tokenizer may be used by many
tasks and threads at once. Encoding takes some tenths of a millisecond per thousand tokens, so code on an event loop
should move long texts to a thread.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import tokenizers
import tokenizers.decoders

from punica_serve.base_model.model_files import read_object
from punica_serve.errors import InvalidRequest, ModelFileMissing, ModelRejected
from punica_serve.errors.reasons import reason_of
from punica_serve.text.chat_template import ChatTemplate
from punica_serve.text.whole_texts import WholeTexts

#: Special tokens of tokenizer_config.json that chat templates may use by name.
_SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

#: Up to this many tokens are decoded with the GIL held, which is faster for the few tokens of a frame.
_MAX_HELD_TOKENS = 1_024


class Tokenizer:
    """Text to token ids and back, as in the model's training. Immutable."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        chat_template: ChatTemplate | None = None,
        special_tokens: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._backend = backend
        #: Keyed by the names that chat templates use: bos_token and so on.
        self.special_tokens = special_tokens
        self._chat_template = chat_template
        added = backend.get_added_tokens_decoder()
        #: Ids that ``decode`` leaves out by default.
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        #: Token id -> byte, if the vocabulary spells unknown characters byte by byte; otherwise empty.
        self.byte_values = _byte_values(backend)
        #: Texts of tokens that need no decoding in a stream.
        self.whole_texts = WholeTexts(self.spelled_bytes, self.special_ids)
        #: Number of token ids, added tokens included.
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Reads tokenizer.json, tokenizer_config.json and chat_template.jinja; only the first is required.

        Raises ModelFileMissing for a missing one, and ModelRejected.
        """
        path = folder / "tokenizer.json"
        try:
            backend = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except OSError as error:
            message = f"{path} can't be read: {error.strerror}; set `engine.tokenizer` to a folder that has it"
            kind = ModelFileMissing if isinstance(error, FileNotFoundError) else ModelRejected
            raise kind(message, param=path.name) from error
        # The library raises a bare Exception for a file that it can't parse.
        except Exception as error:
            raise ModelRejected(f"{path} is not a valid tokenizer: {error}", param=path.name) from error
        # A file may ask to truncate or pad, for training batches; a prompt is served whole or refused.
        backend.no_truncation()
        backend.no_padding()
        config_path = folder / "tokenizer_config.json"
        config = read_object(config_path) if config_path.is_file() else {}
        special_tokens = _special_tokens(config)
        return cls(backend, _read_chat_template(folder, config, special_tokens), special_tokens)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``, by default with what the model expects around it, such as a begin token."""
        # The library's call for a single text holds the GIL throughout, which would stop all threads.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ``token_ids``. Invalid UTF-8 becomes U+FFFD; unknown ids are dropped."""
        if len(token_ids) <= _MAX_HELD_TOKENS:
            text: str = self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
        else:
            (text,) = self._backend.decode_batch([token_ids], skip_special_tokens=skip_special_tokens)
        return text

    def spelled_bytes(self, token_id: int) -> bytes | None:
        """The bytes of a token, if the vocabulary spells bytes as letters; otherwise None."""
        letters = self._backend.id_to_token(token_id)
        if letters is None or not isinstance(self._backend.decoder, tokenizers.decoders.ByteLevel):
            return None
        values = [_BYTE_OF_LETTER.get(letter) for letter in letters]
        return None if None in values else bytes(value for value in values if value is not None)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """A conversation's prompt, to be encoded without special tokens. Raises InvalidRequest."""
        if self._chat_template is None:
            raise InvalidRequest("the base model has no chat template; send a prompt instead", param="messages")
        return self._chat_template.render(messages, add_generation_prompt=add_generation_prompt)


def _byte_of_letter() -> dict[str, int]:
    """GPT-2's alphabet of bytes: printable bytes are themselves, the others are the letters from 256 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [value for value in range(0x100) if value not in printable]
    letters = {chr(value): value for value in printable}
    return letters | {chr(0x100 + index): value for index, value in enumerate(others)}


_BYTE_OF_LETTER = _byte_of_letter()


def _byte_values(backend: tokenizers.Tokenizer) -> dict[int, int]:
    names = {value: f"<0x{value:02X}>" for value in range(256)}
    values = {token_id: value for value, name in names.items() if (token_id := backend.token_to_id(name)) is not None}
    return values if len(values) == len(names) else {}


def _read_chat_template(
    folder: Path, config: Mapping[str, Any], special_tokens: Mapping[str, str]
) -> ChatTemplate | None:
    path = folder / "chat_template.jinja"
    try:
        source = path.read_text(encoding="utf-8") if path.is_file() else _default_template(config.get("chat_template"))
    except (OSError, UnicodeDecodeError) as error:
        raise ModelRejected(f"{path} can't be read: {reason_of(error)}", param=path.name) from error
    return None if source is None else ChatTemplate(source, special_tokens, of=str(folder))


def _default_template(chat_template: object) -> str | None:
    """The template for plain chats: a file holds one template, or a list of named ones of which "default" counts."""
    if isinstance(chat_template, list):
        named = {entry.get("name"): entry.get("template") for entry in chat_template if isinstance(entry, dict)}
        chat_template = named.get("default")
    return chat_template if isinstance(chat_template, str) else None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens' texts: each is a string, or an object that holds one."""
    tokens = {}
    for name in _SPECIAL_TOKEN_NAMES:
        token = config.get(name)
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            tokens[name] = content
    return tokens
