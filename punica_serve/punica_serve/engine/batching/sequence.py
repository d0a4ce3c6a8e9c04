"""A request inside the engine: its tokens, how many of them are in the KvCache, and its pages.

Where steps overlap, the newest token of a sequence may still be on the device when the next step is planned: it is *in
flight*, counted in lengths and positions, and not yet in ``token_ids``.
"""

from dataclasses import dataclass, field

from punica_serve.base_model.lora_layout import LoraKind
from punica_serve.base_model.model_spec import ModelSpec
from punica_serve.engine.batching.invocation import invocation_start
from punica_serve.paging.prefix_hash import PrefixHash
from punica_serve.protocol import AdapterRef, Request, SamplingParams


@dataclass(slots=True, eq=False)
class Sequence:
    """A request from the moment it is added until it ends or is cancelled."""

    request: Request
    #: Prompt tokens, then the generated ones that the host knows.
    token_ids: list[int]
    #: Tokens at most: prompt and max_tokens, within the context.
    max_length: int
    #: The position of its first token in the model's rotary tables.
    rotary_start: int = 0
    lora_kind: LoraKind = LoraKind.NONE
    #: The first row that its adapter updates; rows before it are the base model's.
    invoked_at: int = 0
    #: Tokens, from the first, whose keys and values are in ``pages`` once the launched steps have run.
    num_cached: int = 0
    #: Tokens that launched steps sample and the host does not know yet: at most one when a step is planned.
    num_in_flight: int = 0
    #: A launched step computes it with the help of CPU processes. Until it has ended, its results may be worthless.
    is_unsure: bool = False
    #: Pages of the KvCache, in order of tokens; empty while waiting.
    pages: list[int] = field(default_factory=list)
    #: So many of them, from the first, were given back, since all windows end behind them. Nothing reads them.
    num_released: int = 0
    #: The keys of its full pages; None if it shares none.
    prefix_hash: PrefixHash | None = None
    #: Its first pages that are known, or have a twin that is.
    num_named: int = 0
    #: Tokens that were found in the KvCache instead of being computed, in all its stays.
    num_found: int = 0
    #: Parts of the request, which never changes. Each step reads them for each of its rows.
    request_id: str = field(init=False)
    #: Digest of the adapter; None runs the base model.
    digest: str | None = field(init=False)
    sampling: SamplingParams = field(init=False)
    num_prompt: int = field(init=False)

    def __post_init__(self) -> None:
        request = self.request
        self.request_id, self.digest, self.sampling = request.request_id, request.digest, request.sampling
        self.num_prompt = len(request.prompt_ids)

    @classmethod
    def of(cls, request: Request, max_context: int, model: ModelSpec | None = None) -> "Sequence":
        """``model``: whose rotary tables may depend on the request."""
        token_ids = [*request.prompt_ids, *request.generated_ids]
        max_length = min(len(request.prompt_ids) + request.sampling.max_tokens, max_context)
        invoked_at = invocation_start(request)
        ranks = request.adapter.ranks if request.adapter and invoked_at is not None else None
        rotary_start = model.rotary_start(max_length - 1) if model else 0  # its last token is never fed
        first_row = max_length if invoked_at is None else invoked_at
        return cls(request, token_ids, max_length, rotary_start, LoraKind.of(ranks), first_row)

    def restart(self, num_cached: int) -> None:
        """Forgets all cached tokens but the first ones, and tokens in flight, which are worthless."""
        self.num_cached, self.num_in_flight = min(num_cached, self.num_cached), 0

    @property
    def adapter(self) -> AdapterRef | None:
        return self.request.adapter

    @property
    def arrival(self) -> tuple[int, str]:
        """The order of first come, first served."""
        return self.request.arrival_ns, self.request.request_id

    @property
    def num_tokens(self) -> int:
        """Prompt and generated, with those in flight."""
        return len(self.token_ids) + self.num_in_flight

    @property
    def position(self) -> int:
        """Index of the next generated token."""
        return len(self.token_ids) + self.num_in_flight - self.num_prompt

    @property
    def known_ids(self) -> list[int]:
        """The tokens that the host knows, by the name that page accounting uses."""
        return self.token_ids

    @property
    def num_generated(self) -> int:
        """Generated tokens that the host knows."""
        return len(self.token_ids) - self.num_prompt

    @property
    def generated_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt :]

    @property
    def held_pages(self) -> list[int]:
        """The pages that are its own."""
        return self.pages[self.num_released :]

    @property
    def num_uncached(self) -> int:
        """Tokens that the next steps must feed: 1 when decoding."""
        return self.num_tokens - self.num_cached

    @property
    def is_decoding(self) -> bool:
        return len(self.token_ids) + self.num_in_flight - self.num_cached == 1

    @property
    def is_complete(self) -> bool:
        """Whether its last token is known or in flight, so that no step may run it any more."""
        return len(self.token_ids) + self.num_in_flight >= self.max_length
