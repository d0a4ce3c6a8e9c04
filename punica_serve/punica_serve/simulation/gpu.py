"""A GPU that only counts: the engine's rules for batches and pages, without a model.

Each step decides as the engine's planner does, because both use ``batching_rules``. It does not run the planner itself,
whose objects for each request make a step at batch 32 take six times as long or more.
"""

from collections.abc import Sequence
from typing import NamedTuple

from punica_serve.errors import InvalidRequest
from punica_serve.errors.invariants import require
from punica_serve.paging.prefix_cache import PrefixCache
from punica_serve.paging.prefix_hash import prefix_hash
from punica_serve.performance.lora_load import LoraAccount, LoraLoad
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.prefill_chunks import PrefillBudget
from punica_serve.prefill_turns import PrefillTurns
from punica_serve.protocol import AdapterRef, EndReason, GpuInfo, Request
from punica_serve.simulation.host_memory import SimulatedHostMemory
from punica_serve.simulation.planned_step import PlannedStep, Prefill, equivalent_tokens, prefills_of
from punica_serve.simulation.row import Row
from punica_serve.simulation.row_queues import RowQueues


class SimulatedStep(NamedTuple):
    """The result of a step, in columns. Requests are named by their keys."""

    plan: PlannedStep
    keys: tuple[int, ...]
    positions: tuple[int, ...]
    token_ids: tuple[int, ...]
    finished: tuple[tuple[int, EndReason], ...]
    #: (key, prompt tokens that were found in the KvCache) of rows whose first tokens these are, if any were found.
    cached: tuple[tuple[int, int], ...] = ()


class SimulatedGpu:
    """Requests are added and cancelled between steps: after ``begin_step`` only ``end_step`` may follow."""

    def __init__(
        self,
        info: GpuInfo,
        model: StepTimeModel,
        prefill_budget: PrefillBudget,
        *,
        vocab_size: int,
    ) -> None:
        self._info = info
        self._turns = PrefillTurns(prefill_budget)
        self._model = model
        self._prefills_apart = model.profile.prefills == "apart"
        self._prefill_budget = prefill_budget
        self._vocab_size = vocab_size
        self._rows = RowQueues(info, model.profile.adapter_load, vocab_size=vocab_size)
        self._pages, self._loras, self._decodes = self._rows.pages, self._rows.loras, self._rows.decodes
        #: Rows that get their first token in the step that runs.
        self._beginners: list[Row] = []
        self._plan: PlannedStep | None = None

    @property
    def num_requests(self) -> int:
        """Requests that were added and have not ended."""
        return len(self._rows)

    @property
    def num_free_kv_pages(self) -> int:
        return self._pages.num_free

    @property
    def num_shared_kv_pages(self) -> int:
        """Holders of pages beyond each page's first."""
        return self._pages.num_shared

    @property
    def num_known_kv_pages(self) -> int:
        """Pages that a request could find."""
        return self._pages.num_known

    @property
    def prefixes(self) -> PrefixCache:
        """The pages that its requests find and leave behind."""
        return self._pages.prefixes

    @property
    def resident(self) -> tuple[str, ...]:
        """Digests of the resident adapters, sorted."""
        return self._loras.resident

    @property
    def host(self) -> SimulatedHostMemory:
        """The adapters in its worker's host memory."""
        return self._loras.host

    @property
    def next_ready_s(self) -> float | None:
        """The time at which the next adapter will be loaded."""
        return self._loras.next_ready_s

    def add(self, key: int, request: Request, now_s: float) -> None:
        """Adds a request. Raises InvalidRequest for one that could never run here.

        A request that outgrows the KvCache is preempted, and waits until its owner cancels it.
        """
        capacity = self._pages.rule.longest(self._info.num_kv_pages)
        if len(request.prompt_ids) >= capacity:
            message = f"the prompt's {len(request.prompt_ids)} tokens and an answer exceed the KvCache's {capacity}"
            raise InvalidRequest(message, param="prompt")
        if request.num_tokens >= request.max_num_tokens:
            raise InvalidRequest("the request has all its tokens already", param="generated_ids")
        if request.adapter is not None and not self._loras.could_hold(request.adapter):
            raise InvalidRequest(
                "the adapter is larger than the LoRA pool; raise `engine.num_lora_pages`", param="lora_id"
            )
        row = Row.of(key, request, self._vocab_size)
        if (settings := self._info.prefix_caching) is not None:
            row.prefix_hash = prefix_hash(request, settings, self._info.page_size)
        self._rows.add(row, now_s)

    def cancel(self, key: int) -> None:
        """Removes a request, and frees its pages at once. Unknown keys are ignored."""
        self._rows.cancel(key)

    def prefetch(self, ref: AdapterRef, now_s: float, *, pin: bool | None) -> None:
        """Loads an adapter before a request needs it."""
        self._loras.prefetch(ref, now_s, pin=pin)

    def prefetch_to_host(self, ref: AdapterRef) -> None:
        """Loads an adapter to host memory alone."""
        self.host.add(ref.digest)

    def evict(self, digest: str) -> None:
        """Evicts an adapter once no request uses it."""
        self._loras.evict(digest)

    def begin_step(self, now_s: float) -> PlannedStep | None:
        """Plans the next step and starts it. None if nothing can run until something changes."""
        require(self._plan is None, "a step is under way")
        self._loras.settle(now_s)
        self._rows.admit(now_s)
        self._beginners += self._rows.join_decodes()
        if self._pages.rule.window is not None:
            self._rows.give_back()
        self._plan = (self._plan_prefills() if self._prefills_apart else None) or self._plan_decodes()
        return self._plan

    def end_step(self) -> SimulatedStep:
        """Ends the step that began."""
        plan, self._plan = self._plan, None
        assert plan is not None, "no step is under way"
        beginners, self._beginners = self._beginners, []
        keys, positions, token_ids, ended = self._decodes.advance() if plan.num_decodes else ((), (), (), [])
        for row in ended:
            self._rows.drop(row)
        for row, num_tokens in plan.prefills:
            if not self._rows.prefill(row, num_tokens):
                continue
            keys, positions = (row.key, *keys), (row.position, *positions)
            token_ids = (row.next_token % self._vocab_size, *token_ids)
            beginners += [] if row.has_new_tokens else [row]
            row.num_tokens += 1
            if row.num_tokens == row.max_length:
                ended = [row, *ended]
                self._rows.drop(row)
            else:
                self._decodes.join(row)
        cached = [(row.key, min(row.num_found, row.num_prompt)) for row in beginners if row.num_found]
        finished: tuple[tuple[int, EndReason], ...] = tuple([(row.key, "length") for row in ended])
        return SimulatedStep(plan, keys, positions, token_ids, finished, tuple(cached))

    def check_invariants(self) -> None:
        """Audits pages and queues; an AssertionError is a bug of ours."""
        self._rows.check_invariants()

    def _plan_prefills(self) -> PlannedStep | None:
        """A step of all waiting prefills, for which the decodes pause; None if there are none."""
        prefills = prefills_of(self._rows.prefilling(), self._pages, self._prefill_budget, None)
        if not prefills:
            return None
        lora, num_adapters = _with_prefills(LoraAccount(), prefills)
        return PlannedStep(prefills, 0, num_adapters, self._duration_s(prefills, 0, lora), ())

    def _plan_decodes(self) -> PlannedStep | None:
        """A step of the decodes, with prefills beside them; None if nothing can run."""
        preempted = self._rows.give_pages()
        prefills: tuple[Prefill, ...] = ()
        if prefilling := self._rows.prefilling():
            in_turn, max_prefills = self._turns.order(prefilling), self._info.max_prefills
            prefills = prefills_of(in_turn, self._pages, self._prefill_budget, max_prefills)
            if prefills:
                self._turns.take(prefilling, prefills[0].row)
        num_decodes = len(self._decodes)
        if not prefills and not num_decodes and not preempted:
            return None
        lora, num_adapters = _with_prefills(self._decodes.lora, prefills)
        duration_s = self._duration_s(prefills, num_decodes, lora)
        return PlannedStep(prefills, num_decodes, num_adapters, duration_s, preempted)

    def _duration_s(self, prefills: Sequence[Prefill], num_decodes: int, lora: LoraLoad) -> float:
        num_tokens = equivalent_tokens(prefills, self._prefill_budget)
        return self._model.step_s(num_tokens, num_decodes, self._decodes.num_context_tokens, lora)


def _with_prefills(account: LoraAccount, prefills: Sequence[Prefill]) -> tuple[LoraLoad, int]:
    """The LoRA work of a step with prefills beside an account's rows, and its different adapters."""
    rows = [(prefill.row.digest, prefill.row.adapter_size) for prefill in prefills]
    return account.load_with(rows), account.num_adapters_with(rows)
