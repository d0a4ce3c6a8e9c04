"""Turns tokens into text as they are generated, such that text once returned never changes.

Decoding tokens one by one is wrong in two ways: a character may span up to four tokens, and a token's leading space may
depend on the one before it. So the newest tokens are decoded together with a few before them, and only the text beyond
those is new (the two offsets of Hugging Face TGI's detokenizer). A trailing U+FFFD is held back until later tokens
complete it or make it final. Most tokens of byte-level vocabularies need none of this (``WholeTexts``).
"""

from collections.abc import Sequence
from itertools import islice

from punica_serve.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"

#: An unfinished character shows as at most this many U+FFFD (one for each of its bytes, with byte fallback tokens).
_MAX_UNFINISHED = 3

#: Prompt tokens that the first generated one is decoded with.
_NUM_PROMPT_TOKENS = 32

#: Tokens decoded together before the oldest are dropped. A larger window costs more per token, but drops less often.
_MAX_WINDOW = 8


class IncrementalDetokenizer:
    """The text of one stream of generated tokens, without special tokens.

    The results of ``add`` and then ``finish``, joined, are what the generated tokens add to the decoded prompt. Bytes
    that turn out to be invalid UTF-8 each stay a U+FFFD; text returned before them is not taken back.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._whole_texts = tokenizer.whole_texts
        #: The newest tokens, without special ones. Starts at the start of a character, unless that is too far back.
        self._window = self._context_of(prompt_ids)
        #: The part of the window's text that was already returned.
        self._given = tokenizer.decode(self._window)
        #: Number of the window's tokens up to where its text last ended with a complete character.
        self._num_whole = len(self._window)

    def add(self, token_id: int) -> str:
        """Takes the next generated token; returns the text that has become final."""
        if self._num_whole == len(self._window) and (text := self._whole_texts[token_id]) is not None:
            self._window, self._given, self._num_whole = [token_id], text, 1
            return text
        if token_id in self._tokenizer.special_ids:
            return ""
        self._window.append(token_id)
        text = self._tokenizer.decode(self._window)
        num_held = self._num_unfinished(text)
        if num_held and len(self._window) - self._num_whole <= _MAX_UNFINISHED:
            # Incomplete byte fallback tokens also spoil the complete characters before them.
            return ""
        if not text.startswith(self._given):
            text = self._forget(self._num_whole)
            num_held = self._num_unfinished(text)
        final = text[: len(text) - num_held]
        new = final[len(self._given) :]
        if new:
            self._given = final
        self._slide(num_held)
        return new

    def finish(self) -> str:
        """Ends the stream; returns the text that was held back."""
        text = self._tokenizer.decode(self._window)
        if not text.startswith(self._given):
            text = self._forget(self._num_whole)
        new, self._given = text[len(self._given) :], text
        return new

    def _slide(self, num_held: int) -> None:
        """Drops the oldest tokens of a full window, up to the start of a character.

        A stream without a complete character in a whole window is cut in the middle: by then the cut is far from the
        unfinished character.
        """
        last_whole = self._num_whole
        if num_held:
            if len(self._window) - last_whole < _MAX_WINDOW:
                return
            num_forgotten = len(self._window) // 2
        else:
            self._num_whole = len(self._window)
            if len(self._window) < _MAX_WINDOW:
                return
            num_forgotten = last_whole or len(self._window) // 2
        text = self._forget(num_forgotten)
        self._given = text[: max(0, len(text) - num_held)]

    def _forget(self, num_tokens: int) -> str:
        """Drops the window's first tokens and resets what is known of their text; returns the text of the rest."""
        self._window = self._window[num_tokens:]
        self._num_whole = max(0, self._num_whole - num_tokens)
        self._given = ""
        return self._tokenizer.decode(self._window)

    def _context_of(self, prompt_ids: Sequence[int]) -> list[int]:
        """The end of the prompt, without special tokens, from the start of a character."""
        shown = (token_id for token_id in reversed(prompt_ids) if token_id not in self._tokenizer.special_ids)
        window = list(islice(shown, _NUM_PROMPT_TOKENS))[::-1]
        is_cut = next(shown, None) is not None
        while is_cut and window and self._tokenizer.decode(window).startswith(_REPLACEMENT):
            window.pop(0)
        return window

    def _num_unfinished(self, text: str) -> int:
        """Number of characters at the end of the window's text that later tokens may still change."""
        if not text.endswith(_REPLACEMENT):
            return 0
        num_replacements = len(text) - len(text.rstrip(_REPLACEMENT))
        if self._ends_whole():
            return 0
        return min(num_replacements, _MAX_UNFINISHED)

    def _ends_whole(self) -> bool:
        """Whether the text ends with a complete character. With byte fallback, a literal U+FFFD can be told from an
        incomplete one.
        """
        byte_values = self._tokenizer.byte_values
        values = [byte_values.get(token_id) for token_id in self._window[self._num_whole :]]
        if not byte_values or None in values:
            return bool(byte_values)
        try:
            bytes(value for value in values if value is not None).decode()
        except UnicodeDecodeError:
            return False
        return True
