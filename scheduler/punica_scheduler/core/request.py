"""A request as the scheduler knows it: the record of its way, which no other class writes."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from msgspec.structs import replace

from punica_scheduler.core.request_state import (
    TRANSITIONS,
    WAIT_TRANSITIONS,
    InvalidTransition,
    RequestState,
    WaitReason,
)
from punica_serve.base_model.lora_layout import pages_needed
from punica_serve.errors.invariants import require
from punica_serve.performance.lora_load import NO_ADAPTER, AdapterSize, adapter_size
from punica_serve.protocol import AssignmentId, LoraGroup, Request

#: For arrays of token ids, which take a ninth of a list's memory.
TOKEN_TYPE = "I"
#: GPUs lost with a request running on them that make it a suspect; see ``quarantine``.
NUM_SUSPICIOUS_LOSSES = 2

#: Pages of a LoRA pool, by group. Many requests share it, so it is never changed.
LoraPages = Mapping[LoraGroup, int]


@lru_cache(maxsize=1024)
def _lora_pages(ranks: tuple[tuple[str, int], ...]) -> LoraPages:
    """Few adapters differ in their ranks, so requests share these."""
    return pages_needed(dict(ranks))


class CountedSteps(Protocol):
    """The rows that repeat in a GPU's steps, as a request sees them; see ``repeated_rows``."""

    #: Each gave the request a token that it has not taken over yet.
    num_steps: int


@dataclass(slots=True, eq=False)
class RequestRecord:
    """A live request. ``assignment`` and ``gpu_uuid`` are set exactly while it is placed."""

    frontend_id: str
    #: Its name in deliveries.
    handle: int
    #: As it arrived.
    request: Request
    #: All tokens generated, including those it arrived with. Those that its ``repeated_rows`` hold are added later.
    generated_ids: "array[int]"
    #: Pages of the LoRA pool that its adapter takes, in each group.
    lora_pages: LoraPages
    state: RequestState = RequestState.QUEUED
    #: Since when it is here, and since when it waits, by the scheduler's clock.
    admitted_ns: int = 0
    queued_ns: int = 0
    #: When it was first placed, and when last.
    placed_ns: int = 0
    assigned_ns: int = 0
    #: The rows of its GPU, while each of the GPU's steps gives it a token.
    repeated_rows: "CountedSteps | None" = None
    assignment: AssignmentId | None = None
    gpu_uuid: str | None = None
    #: Where it was placed last, also while it waits.
    last_gpu_uuid: str | None = None
    #: Assignments that ended in a failure that may have been the GPU's.
    num_failures: int = 0
    #: Workers that died with it running, since it was last cleared.
    num_losses: int = 0
    #: Tokens that it had generated when it was placed last.
    num_generated_at_start: int = 0
    #: Set exactly while it is queued.
    wait_reason: WaitReason | None = None
    #: Where it waits with WaitReason.PINNED_GPU.
    pinned_gpu_uuid: str | None = None
    #: When it is tried a last time, with WaitReason.ADAPTER.
    retry_at_ns: int = 0
    #: It has run, or its frontend has added it before. If no GPU is large enough any more, it waits for one.
    was_admitted: bool = False
    #: It was moved by consolidation, which happens to a request at most once.
    was_consolidated: bool = False
    #: Weighted tokens that its tenant was charged for it; see ``vtc_queue``.
    num_charged: int = 0
    #: GPU time: its share of each step's rows. The share that its ``repeated_rows`` count is added later.
    gpu_s: float = 0.0
    #: Time in the queue, up to its newest assignment.
    queue_s: float = 0.0
    #: From its first placement to its first token; None without that token.
    prefill_s: float | None = None
    num_evictions: int = 0
    #: Version of the fleet in which some GPU can hold it with its whole answer.
    fits_fleet_version: int = -1
    #: Its tokens when they were computed, and the hints of its prefixes; see ``known_prefixes``.
    prefix_hints: tuple[int, tuple[int, ...]] | None = None
    request_id: str = field(init=False)
    #: Digest of its adapter; None runs the base model.
    digest: str | None = field(init=False)
    #: Rank and pages of its adapter; NO_ADAPTER without one.
    adapter_size: AdapterSize = field(init=False)
    #: Length of the prompt, and of the longest answer.
    num_prompt: int = field(init=False)
    max_tokens: int = field(init=False)
    #: Both together.
    max_num_tokens: int = field(init=False)
    #: Tokens of its answer, as far as one can tell.
    num_answer: int = field(init=False)
    #: The key of first come, first served.
    arrival: tuple[int, str] = field(init=False)

    def __post_init__(self) -> None:
        self.request_id, self.digest = self.request.request_id, self.request.digest
        self.adapter_size = adapter_size(self.request.adapter) if self.request.adapter else NO_ADAPTER
        self.arrival = (self.request.arrival_ns, self.request_id)
        self.num_prompt = len(self.request.prompt_ids)
        self.max_tokens = self.request.sampling.max_tokens
        self.max_num_tokens = self.num_prompt + self.max_tokens
        self.num_answer = self.max_tokens

    @classmethod
    def of(cls, frontend_id: str, handle: int, request: Request, *, was_admitted: bool = False) -> "RequestRecord":
        lora_pages = _lora_pages(tuple(request.adapter.ranks.items())) if request.adapter else {}
        generated_ids = array(TOKEN_TYPE, request.generated_ids)
        return cls(frontend_id, handle, request, generated_ids, lora_pages, was_admitted=was_admitted)

    @property
    def num_generated(self) -> int:
        """Tokens of the answer so far."""
        return len(self.generated_ids) + (self.repeated_rows.num_steps if self.repeated_rows else 0)

    @property
    def time_per_token_s(self) -> float | None:
        """The promised mean seconds between two tokens of its answer."""
        return self.request.slo.time_per_token_s if self.request.slo else None

    @property
    def first_token_due_s(self) -> float | None:
        """By the scheduler's clock. None without a promise, and for a request that has its first token."""
        slo = self.request.slo
        if slo is None or slo.first_token_s is None or self.num_generated:
            return None
        return self.admitted_ns / 1e9 + slo.first_token_s

    def last_token_due_s(self, now_s: float) -> float | None:
        """By the scheduler's clock, for an answer of ``num_answer`` tokens of which the next comes now. None without a
        promise.
        """
        promised_s = self.time_per_token_s
        if promised_s is None:
            return None
        if self.prefill_s is None:
            return now_s + promised_s * (self.num_answer - self.num_generated - 1)
        return self.placed_ns / 1e9 + self.prefill_s + promised_s * (self.num_answer - 1)

    @property
    def num_tokens(self) -> int:
        """Length of prompt and answer so far."""
        return self.num_prompt + self.num_generated

    @property
    def has_begun(self) -> bool:
        """It has got a token in this assignment, so its prompt is computed."""
        return self.num_generated > self.num_generated_at_start

    @property
    def is_suspect(self) -> bool:
        """It may have killed the workers that it ran on, so it must run alone; see ``quarantine``."""
        return self.num_losses >= NUM_SUSPICIOUS_LOSSES

    @property
    def is_complete(self) -> bool:
        """It has all its tokens: running it would make one too many."""
        return self.num_generated >= self.max_tokens

    def num_tokens_after(self, num_steps: int) -> int:
        """Tokens it may have so many steps from now."""
        return self.num_prompt + min(self.num_generated + num_steps, self.max_tokens)

    def as_it_is(self) -> Request:
        """The request for a new assignment, with the tokens generated so far."""
        if len(self.generated_ids) == len(self.request.generated_ids):
            return self.request
        return replace(self.request, generated_ids=tuple(self.generated_ids))

    # -------------------------------------------------------------- changes, which no other class makes

    def admit(self, now_ns: int, num_typical: float) -> None:
        """``num_typical`` is the length of a typical answer: nobody knows when this one will end by itself."""
        self.admitted_ns = now_ns
        if not self.request.sampling.ignore_eos:
            self.num_answer = min(self.max_tokens, self.num_generated + round(num_typical))

    def begin_assignment(self, assignment: AssignmentId, gpu_uuid: str, now_ns: int) -> None:
        if self.last_gpu_uuid is None:
            self.placed_ns = now_ns
        self.assigned_ns = now_ns
        self.assignment = assignment
        self.gpu_uuid = self.last_gpu_uuid = gpu_uuid
        self.num_generated_at_start = self.num_generated
        self.was_admitted = True

    def end_assignment(self) -> None:
        self.assignment = self.gpu_uuid = None

    @staticmethod
    def join_rows(records: "Sequence[RequestRecord]", rows: "CountedSteps") -> None:
        """From now on the rows count these requests' tokens and GPU time. One call for all: rows change often."""
        for record in records:
            record.repeated_rows = rows

    @staticmethod
    def leave_rows(records: "Sequence[RequestRecord]", token_ids: "array[int]", gpu_s: float) -> None:
        """Each takes over its tokens, those of a step side by side, and the GPU time of a row."""
        num_rows = len(records)
        for row, record in enumerate(records):
            record.generated_ids += token_ids[row::num_rows]
            record.gpu_s += gpu_s
            record.repeated_rows = None

    def end_prefill(self, now_ns: int) -> None:
        """The first token of its answer has come."""
        self.prefill_s = (now_ns - self.placed_ns) / 1e9

    def accept_token(self, token_id: int, gpu_s: float) -> None:
        """Appends a token outside repeated rows."""
        self.generated_ids.append(token_id)
        self.gpu_s += gpu_s

    def count_preemption(self) -> None:
        self.num_evictions += 1

    def count_failure(self) -> None:
        """An assignment ended in a failure that may have been the GPU's."""
        self.num_failures += 1

    def count_loss(self) -> None:
        """A worker died with the request running on it."""
        self.num_losses += 1

    def clear(self) -> None:
        """It has shown that it does not kill workers."""
        self.num_losses = 0

    def consolidate(self) -> None:
        """It moves to empty a GPU, which it never does again."""
        self.was_consolidated = True

    def charge(self, service: int) -> int:
        """Charges its tenant for ``service`` weighted tokens in all; returns how many are new."""
        num_new = max(0, service - self.num_charged)
        self.num_charged += num_new
        return num_new

    def fit_fleet(self, version: int) -> None:
        """Some GPU of this version of the fleet can hold it with its whole answer."""
        self.fits_fleet_version = version

    def pin(self, gpu_uuid: str) -> None:
        """The next wait is for room on this GPU."""
        self.pinned_gpu_uuid = gpu_uuid

    def retry_adapter_at(self, at_ns: int) -> None:
        """The next wait is for its adapter, until then at most."""
        self.retry_at_ns = at_ns

    def begin_wait(self, reason: WaitReason, now_ns: int) -> None:
        self.wait_reason, self.queued_ns = reason, now_ns

    def change_wait_reason(self, reason: WaitReason) -> None:
        """Raises InvariantBroken for what ``WAIT_TRANSITIONS`` does not allow."""
        require(
            self.wait_reason is not None and reason in WAIT_TRANSITIONS[self.wait_reason],
            f"request {self.request_id} waits for {self.wait_reason} and can't wait for {reason}",
        )
        self.wait_reason, self.pinned_gpu_uuid = reason, None

    def restart_wait(self, now_ns: int) -> None:
        """Counts the wait so far, and goes on waiting."""
        self.queue_s += (now_ns - self.queued_ns) / 1e9
        self.queued_ns = now_ns

    def end_wait(self, now_ns: int) -> None:
        self.queue_s += (now_ns - self.queued_ns) / 1e9
        self.wait_reason = self.pinned_gpu_uuid = None

    def become(self, state: RequestState, event_log: Iterable[object]) -> None:
        """Moves to another state. Raises InvalidTransition, with the event log, and changes nothing."""
        if state not in TRANSITIONS[self.state]:
            raise InvalidTransition(self.request_id, self.state, state, event_log)
        self.state = state
