"""Tokens whose text is the same wherever they stand, so that a stream needs no decoding for them."""

from collections.abc import Callable

_REPLACEMENT = "\ufffd"


class WholeTexts(dict[int, str | None]):
    """Token id -> its text, if that is whole characters that the tokens around it can't change; else None. Cached.

    Vocabularies that spell bytes as letters are decoded by joining the bytes, so there a token of whole characters is
    such a token. With other decoders, a text may depend on the token before it.
    """

    def __init__(self, spelled_bytes: Callable[[int], bytes | None], special_ids: frozenset[int]) -> None:
        """``spelled_bytes`` gives the bytes that a token spells; ``special_ids`` are tokens that show no text."""
        super().__init__()
        self._spelled_bytes = spelled_bytes
        self._special_ids = special_ids

    def __missing__(self, token_id: int) -> str | None:
        text = self[token_id] = self._of(token_id)
        return text

    def _of(self, token_id: int) -> str | None:
        spelled = None if token_id in self._special_ids else self._spelled_bytes(token_id)
        try:
            text = spelled.decode() if spelled else ""
        except UnicodeDecodeError:  # part of a character
            return None
        # A replacement character can't be told from an unfinished one.
        return text if text and not text.endswith(_REPLACEMENT) else None
