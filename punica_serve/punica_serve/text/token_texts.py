"""Single tokens as texts and bytes, for clients that look at an answer token by token."""

from punica_serve.text.tokenizer import Tokenizer

#: Any plain text: a token is decoded after it, since the first token of a text may lose its leading space.
_BEFORE = "a"


class TokenTexts:
    """The texts of a tokenizer's tokens, cached."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._before_ids = tokenizer.encode(_BEFORE, add_special_tokens=False)
        self._before = tokenizer.decode(self._before_ids)
        self._texts: dict[int, str] = {}

    def text(self, token_id: int) -> str:
        """A token's text. Special tokens give their names; part of a character gives U+FFFD."""
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = self._text(token_id)
        return text

    def bytes_of(self, token_id: int) -> list[int] | None:
        """UTF-8, or the bytes of part of a character; None if they are unknown."""
        if (value := self._tokenizer.byte_values.get(token_id)) is not None:
            return [value]
        text = self.text(token_id)
        if "\ufffd" not in text:
            return list(text.encode())
        spelled = self._tokenizer.spelled_bytes(token_id)
        return None if spelled is None else list(spelled)

    def _text(self, token_id: int) -> str:
        text = self._tokenizer.decode([*self._before_ids, token_id], skip_special_tokens=False)
        if text.startswith(self._before):
            return text[len(self._before) :]
        return self._tokenizer.decode([token_id], skip_special_tokens=False)
