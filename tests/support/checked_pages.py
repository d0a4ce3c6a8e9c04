"""A runner that computes nothing, and checks instead that each row of a step sees what it must in its request's pages.

An entry of the KvCache stands for all that its key and value follow from: who may share it, the adapter, and all tokens
up to it. So the first row that sees a page of another tenant, adapter or prompt fails its step. A token follows from
the entry before it, so a request has the same tokens wherever and however it runs.
"""

import time
from typing import Any

from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_plan import StepPlan
from punica_serve.engine.sampler import SampledToken
from punica_serve.engine.step_runner import CpuRunner, FinishedStep
from punica_serve.models.model import Model
from punica_serve.protocol import Request

#: Tokens are below it, and 0 ends no request here.
NUM_TOKENS = 96


def expected_answer(request: Request) -> list[int]:
    """The tokens of a request, wherever and however it runs."""
    entry, answer = _owner(request), list[int]()
    for token_id in request.prompt_ids:
        entry = _next(entry, token_id)
    while len(answer) < request.sampling.max_tokens:
        answer.append(_token_after(entry))
        entry = _next(entry, answer[-1])
    return answer


class PageCheckingRunner(CpuRunner):
    """Launches like a GPU: the tokens of a step are told when the next one has been launched."""

    overlap_scheduling = True

    def __init__(self, model: Model, cache: KvCache, *rest: Any) -> None:
        super().__init__(model, cache, *rest)
        self._page_size, self._window = cache.page_size, cache.window
        #: By page and place in it.
        self._entries: dict[tuple[int, int], int] = {}
        #: The newest token of each sequence of the newest step, which the host does not know yet.
        self._in_flight: dict[Sequence, int] = {}

    def launch(self, plan: StepPlan) -> FinishedStep:
        ends = {chunk.sequence: chunk.end for chunk in plan.prefills}
        ends |= {sequence: sequence.num_tokens for sequence in plan.decodes}
        expected = {sequence: self._expected(sequence, end) for sequence, end in ends.items()}
        for sequence, end in ends.items():
            for position in range(sequence.num_cached, end):
                self._entries[self._place(sequence, position)] = expected[sequence][position]
        for sequence, end in ends.items():
            self._check(sequence, expected[sequence], end)
        self._in_flight = {sequence: _token_after(expected[sequence][-1]) for sequence in plan.sampled}
        now_ns = time.monotonic_ns()
        sampled = [SampledToken(token_id, None) for token_id in self._in_flight.values()]
        return FinishedStep(sampled, (now_ns, now_ns, now_ns))

    def _expected(self, sequence: Sequence, end: int) -> list[int]:
        """The entries of its first ``end`` tokens."""
        newest = [self._in_flight[sequence]] if sequence.num_in_flight else []
        entry, entries = _owner(sequence.request), list[int]()
        for token_id in [*sequence.token_ids, *newest][:end]:
            entry = _next(entry, token_id)
            entries.append(entry)
        return entries

    def _check(self, sequence: Sequence, expected: list[int], end: int) -> None:
        first = max(0, sequence.num_cached - self._window + 1) if self._window else 0
        for position in range(first, end):
            found = self._entries.get(self._place(sequence, position))
            assert found == expected[position], f"{sequence.request_id} sees another's entry at {position} of {end}"

    def _place(self, sequence: Sequence, position: int) -> tuple[int, int]:
        page, place = divmod(position, self._page_size)
        assert page >= sequence.num_released, f"{sequence.request_id} uses a page that it gave back"
        return sequence.pages[page], place


def _owner(request: Request) -> int:
    return hash((request.digest, request.tenant_id, request.cache_salt))


def _next(entry: int, token_id: int) -> int:
    return hash((entry, token_id))


def _token_after(entry: int) -> int:
    return 1 + entry % (NUM_TOKENS - 1)
