"""A request on a simulated GPU: numbers only, no tokens."""

from dataclasses import dataclass

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
    #: Tokens, from the first, whose keys and values are in the KvCache.
    num_cached: int = 0
    num_pages: int = 0
    #: The decode batch's clock when it joined.
    joined: int = 0
    #: Position - clock, and token id - TOKEN_STRIDE * clock, which are constant while it is in the batch.
    position_offset: int = 0
    token_offset: int = 0

    @classmethod
    def of(cls, key: int, request: Request) -> "Row":
        return cls(
            key,
            (request.arrival_ns, request.request_id),
            request.adapter,
            adapter_size(request.adapter) if request.adapter else None,
            len(request.prompt_ids),
            request.num_tokens,
            request.max_num_tokens,
            first_token(request.sampling.seed),
        )

    @property
    def digest(self) -> str | None:
        """Digest of the adapter; None runs the base model."""
        return self.adapter.digest if self.adapter else None

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
