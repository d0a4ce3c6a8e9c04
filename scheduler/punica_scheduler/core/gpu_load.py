"""The sums of a working set that a placement by cost reads: ranks, prefills that are due, and the tightest promise."""

from collections import Counter
from collections.abc import Mapping
from math import inf

from punica_scheduler.core.request import RequestRecord
from punica_serve.errors.invariants import require
from punica_serve.performance.lora_load import LoraAccount


class GpuLoad:
    """Kept up to date as requests come, get their first token, and leave. Requests are named by their counters."""

    __slots__ = ("_due", "_promises", "lora", "num_prefill_tokens", "tightest_s")

    def __init__(self) -> None:
        #: The adapters of all requests.
        self.lora = LoraAccount()
        #: Tokens of each request that has no token of this assignment yet, and their sum.
        self._due: dict[int, int] = {}
        self.num_prefill_tokens = 0
        #: Promised times per token -> requests.
        self._promises: Counter[float] = Counter()
        #: The least of them, in seconds; infinite without a promise.
        self.tightest_s = inf

    @property
    def num_prefilling(self) -> int:
        """Requests placed and not prefilled."""
        return len(self._due)

    def add(self, counter: int, record: RequestRecord) -> None:
        if record.digest is not None:
            self.lora.add(record.digest, record.adapter_size)
        self._due[counter] = record.num_tokens
        self.num_prefill_tokens += record.num_tokens
        if (promised_s := record.time_per_token_s) is not None:
            self._promises[promised_s] += 1
            self.tightest_s = min(self.tightest_s, promised_s)

    def begun(self, counter: int) -> None:
        """The request got the first token of this assignment."""
        self.num_prefill_tokens -= self._due.pop(counter, 0)

    def remove(self, counter: int, record: RequestRecord) -> None:
        self.begun(counter)
        if record.digest is not None:
            self.lora.remove(record.digest, record.adapter_size)
        if (promised_s := record.time_per_token_s) is not None:
            self._promises[promised_s] -= 1
            if not self._promises[promised_s]:
                del self._promises[promised_s]
                self.tightest_s = min(self._promises, default=inf)

    def check_invariants(self, working_set: Mapping[int, RequestRecord]) -> None:
        """AssertionError is a bug of ours."""
        fresh = GpuLoad()
        for counter, record in working_set.items():
            fresh.add(counter, record)
            if record.num_generated > record.num_generated_at_start:
                fresh.begun(counter)
        require(fresh.lora.load == self.lora.load, "the ranks of a GPU")
        require(fresh._due.keys() == self._due.keys(), "the prefills of a GPU")
        require(self.num_prefill_tokens == sum(self._due.values()), "the tokens to prefill of a GPU")
        require(fresh.tightest_s == self.tightest_s, "the tightest promise of a GPU")
