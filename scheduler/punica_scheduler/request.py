"""A request as the scheduler knows it, and the life it can lead.

queued ──▶ placed ──▶ finished
  ▲  │       │ │
  │  │       │ └────▶ cancelled, failed
  │  └───────┼──────▶ cancelled, failed, finished (it lost its GPU after its last token)
  └──────────┘        evicted, its GPU lost, failed there but perhaps not elsewhere
"""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec.structs import replace

from punica_serve.lora_layout import pages_needed
from punica_serve.protocol import AssignmentId, LoraGroup, Request

if TYPE_CHECKING:
    from punica_scheduler.batch import Batch

#: Of arrays of token ids, which take a ninth of what a list takes.
TOKEN_TYPE = "I"
#: GPUs lost with a request running on them that make it a suspect; see ``trials``.
NUM_SUSPICIOUS_LOSSES = 2


#: Pages of a LoRA pool, by group. What many requests share is never changed.
LoraPages = Mapping[LoraGroup, int]


@lru_cache(maxsize=1024)
def _lora_pages(ranks: tuple[tuple[str, int], ...]) -> LoraPages:
    """Few adapters differ in their ranks, so requests share these."""
    return pages_needed(dict(ranks))


class RequestState(Enum):
    __hash__ = object.__hash__  # Enum's own is written in Python, and states are looked up at every turn

    QUEUED = "queued"
    PLACED = "placed"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


_ENDS = frozenset({RequestState.FINISHED, RequestState.CANCELLED, RequestState.FAILED})

TRANSITIONS: dict[RequestState, frozenset[RequestState]] = {
    RequestState.QUEUED: _ENDS | {RequestState.PLACED},
    RequestState.PLACED: _ENDS | {RequestState.QUEUED},
    RequestState.FINISHED: frozenset(),
    RequestState.CANCELLED: frozenset(),
    RequestState.FAILED: frozenset(),
}


class InvalidTransition(AssertionError):
    """A bug of ours: a request was to do what its state does not allow. Nothing was changed."""

    def __init__(self, request_id: str, start: RequestState, finish: RequestState, story: Iterable[object]) -> None:
        super().__init__(f"request {request_id} is {start.value} and can't become {finish.value}")
        #: The scheduler's newest events and actions, oldest first.
        self.story = tuple(story)


@dataclass(slots=True, eq=False)
class RequestRecord:
    """A live request. ``assignment`` and ``gpu_uuid`` are set exactly while it is placed."""

    frontend_id: str
    #: What deliveries call it.
    handle: int
    #: As it arrived.
    request: Request
    #: All tokens generated, those that it arrived with too. What its ``batch`` has of them is yet to come.
    generated_ids: "array[int]"
    #: Pages of the LoRA pool that its adapter takes, in each group.
    lora_pages: LoraPages
    state: RequestState = RequestState.QUEUED
    #: Since when it is here, and since when it waits, by the scheduler's clock.
    admitted_ns: int = 0
    queued_ns: int = 0
    #: Of its GPU, while it is among the requests that each of its steps gives a token.
    batch: "Batch | None" = None
    assignment: AssignmentId | None = None
    gpu_uuid: str | None = None
    #: Where it was placed last, also while it waits.
    last_gpu_uuid: str | None = None
    #: Assignments that ended in a failure that may have been the GPU's.
    num_failures: int = 0
    #: Workers that died while it was running on them, since it was last acquitted.
    num_losses: int = 0
    #: Tokens that it had generated when it was placed last.
    num_generated_at_start: int = 0
    #: Without migration, the GPU that it was evicted from and waits for.
    home_uuid: str | None = None
    #: Until when it waits aside: the store did not give its adapter. None: it does not.
    aside_until_ns: int | None = None
    #: It has run, or its frontend has added it before: where no GPU is large enough any more, it waits for one.
    is_owed: bool = False
    #: It does so now.
    awaits_larger: bool = False
    #: It was moved to empty a GPU. That happens to a request once.
    was_consolidated: bool = False
    #: What its tenant has been charged for it, in weighted tokens; see ``vtc_queue``.
    num_charged: int = 0
    #: GPU time that it took: of each step, its share of the rows. What its ``batch`` counts is yet to come.
    gpu_s: float = 0.0
    #: That it waited for a place, up to its newest.
    queue_s: float = 0.0
    num_evictions: int = 0
    #: Of the fleet, in which a GPU was found that holds it with its whole answer.
    fits_fleet_version: int = -1
    #: Of prompt; and of the longest answer.
    num_prompt: int = field(init=False)
    max_tokens: int = field(init=False)
    #: Of both together.
    max_num_tokens: int = field(init=False)
    #: First come, first served goes by this.
    arrival: tuple[int, str] = field(init=False)

    def __post_init__(self) -> None:
        self.arrival = (self.request.arrival_ns, self.request.request_id)
        self.num_prompt = len(self.request.prompt_ids)
        self.max_tokens = self.request.sampling.max_tokens
        self.max_num_tokens = self.num_prompt + self.max_tokens

    @classmethod
    def of(cls, frontend_id: str, handle: int, request: Request) -> "RequestRecord":
        lora_pages = _lora_pages(tuple(request.adapter.ranks.items())) if request.adapter else {}
        return cls(frontend_id, handle, request, array(TOKEN_TYPE, request.generated_ids), lora_pages)

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def digest(self) -> str | None:
        """Of its adapter; None runs the base model."""
        return self.request.adapter.digest if self.request.adapter else None

    @property
    def num_generated(self) -> int:
        """Tokens of the answer so far."""
        return len(self.generated_ids) + (self.batch.num_steps if self.batch else 0)

    @property
    def num_tokens(self) -> int:
        """Of prompt and answer so far."""
        return self.num_prompt + self.num_generated

    @property
    def is_suspect(self) -> bool:
        """It may have killed the workers that it ran on, so it must run alone."""
        return self.num_losses >= NUM_SUSPICIOUS_LOSSES

    @property
    def is_complete(self) -> bool:
        """It has all its tokens: running it would make one too many."""
        return self.num_generated >= self.max_tokens

    def num_tokens_after(self, num_steps: int) -> int:
        """Tokens it may have so many steps from now."""
        return self.num_prompt + min(self.num_generated + num_steps, self.max_tokens)

    def as_it_is(self) -> Request:
        """What a GPU needs to go on with a request that is on none."""
        if len(self.generated_ids) == len(self.request.generated_ids):
            return self.request
        return replace(self.request, generated_ids=tuple(self.generated_ids))

    def count_wait(self, now_ns: int) -> None:
        """Its newest wait is over."""
        self.queue_s += (now_ns - self.queued_ns) / 1e9

    def become(self, state: RequestState, story: Iterable[object]) -> None:
        """Moves to another state. Raises InvalidTransition, with the story, and stays as it was."""
        if state not in TRANSITIONS[self.state]:
            raise InvalidTransition(self.request_id, self.state, state, story)
        self.state = state
