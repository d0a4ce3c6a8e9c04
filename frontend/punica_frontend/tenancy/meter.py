"""Meters what tenants use, from what is delivered to them. Does no input or output.

A request and its prompt count once its first tokens go to its client; a request that was refused or never began costs
nothing. Each choice of a prompt counts as a request, but the prompt counts once, as in the answer's usage. GPU time is
reported at the request's end, even if the client left before. Promises are judged then, too, also those of a request
that never began.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from punica_frontend.api.caller import Caller
from punica_serve.protocol import NO_PROMISES, PromiseCounts
from punica_serve.registry.records import AdapterVersion, Usage

log = logging.getLogger(__name__)

_HOUR_S = 3600
#: The most (tenant, adapter, hour) counts that wait to be written. If the registry is down longer, further usage is
#: lost, and the log says so.
MAX_WAITING = 100_000

#: (id and name of the tenant, the adapter's owner, its full name and version), as in Usage behind the hour.
_User = tuple[str, str, str | None, str | None, int | None]


@dataclass(slots=True)
class _Counts:
    num_requests: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    gpu_s: float = 0.0
    promises: PromiseCounts = NO_PROMISES


class BilledPrompt:
    """A prompt that is billed once, however many requests share it."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens

    def take(self) -> int:
        """Returns its tokens the first time, then 0."""
        num_tokens, self._num_tokens = self._num_tokens, 0
        return num_tokens


class Meter:
    """Adds up usage until ``take``."""

    def __init__(self, clock_s: Callable[[], float] = time.time) -> None:
        self._clock_s = clock_s
        self._counts: dict[tuple[int, _User], _Counts] = {}
        self._is_full = False

    def begin(self, caller: Caller, adapter: AdapterVersion | None, prompt: BilledPrompt) -> "Charge":
        """Returns the charge of a request that is about to be added."""
        what = (adapter.tenant_id, adapter.full_name, adapter.version) if adapter else (None, None, None)
        # The tenant's id, since its name may change owners.
        return Charge(self, (caller.tenant_id, caller.tenant, *what), prompt)

    def take(self) -> list[Usage]:
        """Returns the usage since the last call."""
        counts, self._counts, self._is_full = self._counts, {}, False
        return [Usage(hour_s, *user, **asdict(each)) for (hour_s, user), each in counts.items()]

    def counts(self, user: _User) -> _Counts:
        """Returns the current counts to add to."""
        key = (int(self._clock_s()) // _HOUR_S * _HOUR_S, user)
        counts = self._counts.get(key)
        if counts is None:
            counts = _Counts()
            if len(self._counts) < MAX_WAITING:
                self._counts[key] = counts
            elif not self._is_full:
                self._is_full = True
                log.error("more than %d usage counts are waiting for the registry; further usage is lost", MAX_WAITING)
        return counts


class Charge:
    """The charge of one request."""

    def __init__(self, meter: Meter, user: _User, prompt: BilledPrompt) -> None:
        self._meter = meter
        self._user = user
        self._prompt = prompt
        self._has_begun = False

    def add_tokens(self, num_tokens: int, num_cached_tokens: int = 0) -> None:
        """Counts delivered tokens. ``num_cached_tokens`` is how many of its prompt's were found in a KvCache."""
        if not num_tokens:
            return
        counts = self._meter.counts(self._user)
        counts.num_generated_tokens += num_tokens
        if not self._has_begun:
            self._has_begun = True
            counts.num_requests += 1
            num_billed = self._prompt.take()
            counts.num_prompt_tokens += num_billed
            counts.num_cached_tokens += min(num_billed, num_cached_tokens)

    def add_gpu_time(self, gpu_s: float) -> None:
        if gpu_s:
            self._meter.counts(self._user).gpu_s += gpu_s

    def add_promises(self, promises: PromiseCounts) -> None:
        """Counts the request's judged promises."""
        if promises:
            self._meter.counts(self._user).promises += promises
