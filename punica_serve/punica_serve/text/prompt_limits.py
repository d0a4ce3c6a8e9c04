"""Limits on a prompt: characters before it is tokenized, and tokens after. Pure."""

from dataclasses import dataclass

from punica_serve.errors import ContextOverflow

#: Limit for each token of the context. Plain text has about 4 characters per token; only long runs of spaces have 16.
MAX_CHARS_PER_TOKEN = 16

#: Texts up to this length are tokenized in the serving process; longer ones in a process with limited memory.
MAX_LOCAL_CHARS = 64 << 10

#: Most tokens that such a process returns, in multiples of the context. /tokenize may count more than one context
#: holds.
_MAX_CONTEXTS = 4


@dataclass(frozen=True, slots=True)
class PromptLimits:
    #: Longest prompt plus answer, in tokens.
    max_context: int

    @property
    def max_chars(self) -> int:
        return MAX_CHARS_PER_TOKEN * self.max_context

    @property
    def max_tokens(self) -> int:
        return _MAX_CONTEXTS * self.max_context

    def check_chars(self, num_chars: int, param: str) -> None:
        """Raises ContextOverflow if a field's prompt is too long to be tokenized."""
        if num_chars > self.max_chars:
            message = (
                f"`{param}` makes a prompt of {num_chars} characters, but the context holds {self.max_context} tokens,"
                f" which allows at most {self.max_chars} characters ({MAX_CHARS_PER_TOKEN} for each token); shorten it"
            )
            raise ContextOverflow(message, param=param)

    def check_tokens(self, num_tokens: int, param: str) -> None:
        """Raises ContextOverflow if a field's prompt became far more tokens than fit."""
        if num_tokens > self.max_tokens:
            message = (
                f"`{param}` makes a prompt of {num_tokens} tokens, but the context holds {self.max_context}; shorten it"
            )
            raise ContextOverflow(message, param=param)
