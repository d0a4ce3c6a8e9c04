"""The sums of a working set that a placement by cost reads: ranks, prefills that are due, promises and their slack."""

from collections import Counter
from collections.abc import Mapping
from math import inf

from punica_scheduler.core.prefill_queue import PrefillQueue
from punica_scheduler.core.request import RequestRecord
from punica_scheduler.core.slack import Slack
from punica_serve.errors.invariants import require
from punica_serve.performance.lora_load import LoraAccount
from punica_serve.prefill_chunks import PrefillBudget


class GpuLoad:
    """Kept up to date as requests come, get their first token, and leave. Requests are named by their counters."""

    __slots__ = ("_promises", "lora", "prefills", "slack", "tightest_s")

    def __init__(self, budget: PrefillBudget) -> None:
        """``budget``: the GPU's, by which prompts are chunked."""
        #: The adapters of all requests.
        self.lora = LoraAccount()
        #: Requests that have no token of this assignment yet.
        self.prefills = PrefillQueue(budget)
        #: The slack of requests that have one.
        self.slack = Slack()
        #: Promised times per token -> requests.
        self._promises: Counter[float] = Counter()
        #: The least of them, in seconds; infinite without a promise.
        self.tightest_s = inf

    def add(self, counter: int, record: RequestRecord, next_step: int, prefill_step: int) -> None:
        """The GPU may begin ``next_step`` with the request at the earliest, and prefill it in ``prefill_step``."""
        if record.digest is not None:
            self.lora.add(record.digest, record.adapter_size)
        self.prefills.add(counter, record, next_step, prefill_step)
        if (promised_s := record.time_per_token_s) is not None:
            self._promises[promised_s] += 1
            self.tightest_s = min(self.tightest_s, promised_s)

    def begun(self, counter: int, now_ns: int) -> None:
        """The request is about to get the first token of this assignment."""
        if record := self.prefills.begun(counter):
            self.slack.add(counter, record, now_ns / 1e9)

    def remove(self, counter: int, record: RequestRecord) -> None:
        self.prefills.remove(counter)
        self.slack.remove(counter)
        if record.digest is not None:
            self.lora.remove(record.digest, record.adapter_size)
        if (promised_s := record.time_per_token_s) is not None:
            self._promises[promised_s] -= 1
            if not self._promises[promised_s]:
                del self._promises[promised_s]
                self.tightest_s = min(self._promises, default=inf)

    def check_invariants(self, working_set: Mapping[int, RequestRecord]) -> None:
        """AssertionError is a bug of ours."""
        fresh, due = GpuLoad(self.prefills.budget), {}
        for counter, record in working_set.items():
            fresh.add(counter, record, 0, 0)
            if record.num_generated == record.num_generated_at_start:
                due[counter] = record
        require(fresh.lora.load == self.lora.load, "the ranks of a GPU")
        require(fresh.tightest_s == self.tightest_s, "the tightest promise of a GPU")
        self.prefills.check_invariants(due)
        self.slack.check_invariants(working_set.keys() - due.keys())
