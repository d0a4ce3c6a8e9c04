"""A request inside the engine: its tokens, how many of them are in the KvCache, and its pages."""

from dataclasses import dataclass, field

from punica_serve.protocol import AdapterRef, Request, SamplingParams


@dataclass(slots=True, eq=False)
class Sequence:
    """A request from the moment it is added until it finishes, is cancelled, or is put back to wait."""

    request: Request
    #: Prompt, then generated.
    token_ids: list[int]
    #: Tokens, from the first, whose keys and values are in ``pages``.
    num_cached: int = 0
    #: Pages of the KvCache, in order of tokens; empty while waiting.
    pages: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, request: Request) -> "Sequence":
        return cls(request, [*request.prompt_ids, *request.generated_ids])

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def adapter(self) -> AdapterRef | None:
        return self.request.adapter

    @property
    def digest(self) -> str | None:
        """Digest of the adapter; None runs the base model."""
        return self.request.adapter.digest if self.request.adapter else None

    @property
    def sampling(self) -> SamplingParams:
        return self.request.sampling

    @property
    def arrival(self) -> tuple[int, str]:
        """First come, first served goes by this."""
        return self.request.arrival_ns, self.request.request_id

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def position(self) -> int:
        """Index of the next generated token."""
        return len(self.token_ids) - self.num_prompt

    @property
    def generated_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt :]

    @property
    def num_uncached(self) -> int:
        """Tokens that the next steps must feed: 1 when decoding."""
        return len(self.token_ids) - self.num_cached

    @property
    def is_decoding(self) -> bool:
        return self.num_uncached == 1
