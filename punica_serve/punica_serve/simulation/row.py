"""A request on a simulated GPU: numbers, and tokens only where pages are shared."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from punica_serve.paging.prefix_hash import PrefixHash
from punica_serve.performance.lora_load import AdapterSize, adapter_size
from punica_serve.protocol import AdapterRef, Request
from punica_serve.simulation.tokens import TOKEN_STRIDE, first_token


@dataclass(slots=True, eq=False)
class Row:
    """``num_tokens`` and ``num_pages`` are not updated while the row is in a DecodeBatch, which counts for all rows."""

    #: The owner's name for it: the counter of its assignment.
    key: int
    #: The key of first come, first served.
    arrival: tuple[int, str]
    adapter: AdapterRef | None
    adapter_size: AdapterSize | None
    num_prompt: int
    #: Prompt and generated.
    num_tokens: int
    #: Prompt and the longest answer.
    max_length: int
    first_token: int
    #: The tokens that it came with.
    given_ids: Sequence[int]
    vocab_size: int
    #: Tokens, from the first, whose keys and values are in the KvCache.
    num_cached: int = 0
    #: Those that it gave back behind a window included.
    num_pages: int = 0
    #: Its first pages: those that it was admitted with. The GPU keeps the later ones of all rows together.
    pages: list[int] = field(default_factory=list)
    #: As a `PageHolder`; None if it shares no pages.
    prefix_hash: PrefixHash | None = None
    num_named: int = 0
    num_found: int = 0
    num_released: int = 0
    #: The decode batch's clock when it joined.
    joined: int = 0
    #: Position - clock, and token id - TOKEN_STRIDE * clock, which are constant while it is in the batch.
    position_offset: int = 0
    token_offset: int = 0

    @classmethod
    def of(cls, key: int, request: Request, vocab_size: int) -> "Row":
        return cls(
            key,
            (request.arrival_ns, request.request_id),
            request.adapter,
            adapter_size(request.adapter) if request.adapter else None,
            len(request.prompt_ids),
            request.num_tokens,
            request.max_num_tokens,
            first_token(request.sampling.seed),
            request.prompt_ids + request.generated_ids,
            vocab_size,
        )

    @property
    def digest(self) -> str | None:
        """Digest of the adapter; None runs the base model."""
        return self.adapter.digest if self.adapter else None

    @property
    def known_ids(self) -> list[int]:
        """All tokens: those that it came with, and those that were generated here."""
        positions = range(len(self.given_ids) - self.num_prompt, self.position)
        generated = [(self.first_token + at * TOKEN_STRIDE) % self.vocab_size for at in positions]
        return [*self.given_ids, *generated]

    @property
    def has_new_tokens(self) -> bool:
        """Whether it has generated tokens here."""
        return self.num_tokens > len(self.given_ids)

    @property
    def num_uncached(self) -> int:
        """Tokens that the next steps must feed: 1 when decoding."""
        return self.num_tokens - self.num_cached

    @property
    def is_decoding(self) -> bool:
        return self.num_uncached == 1

    @property
    def position(self) -> int:
        """Position of its next token."""
        return self.num_tokens - self.num_prompt

    @property
    def next_token(self) -> int:
        """Id of its next token, before reduction modulo the vocabulary's size."""
        return self.first_token + self.position * TOKEN_STRIDE
