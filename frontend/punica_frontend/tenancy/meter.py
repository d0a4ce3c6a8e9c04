"""Counts what tenants use, from what is delivered to them. Does no input or output.

A request counts once its first tokens go to its client, and with it its prompt: one that was refused or never began
costs nothing. GPU time comes with the request's end, also where the client left before.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from punica_serve.registry.records import AdapterVersion, Usage

log = logging.getLogger(__name__)

_HOUR_S = 3600
#: Counts that wait to be written: of as many tenants, adapters and hours. More than that while the registry is down
#: are lost, and the log says so.
MAX_WAITING = 100_000

#: (hour, tenant, adapter, version)
_Key = tuple[int, str, str | None, int | None]


@dataclass(slots=True)
class _Counts:
    num_requests: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    gpu_s: float = 0.0


class Meter:
    """Adds up until ``take`` is called."""

    def __init__(self, clock_s: Callable[[], float] = time.time) -> None:
        self._clock_s = clock_s
        self._counts: dict[_Key, _Counts] = {}
        self._is_full = False

    def begin(self, tenant: str, adapter: AdapterVersion | None, num_prompt_tokens: int) -> "Charge":
        """For a request that is about to be added."""
        return Charge(self, tenant, adapter, num_prompt_tokens)

    def take(self) -> list[Usage]:
        """What was counted since the last time."""
        counts, self._counts, self._is_full = self._counts, {}, False
        return [
            Usage(*key, each.num_requests, each.num_prompt_tokens, each.num_generated_tokens, each.gpu_s)
            for key, each in counts.items()
        ]

    def counts(self, tenant: str, adapter: AdapterVersion | None) -> _Counts:
        """Where to add what is used now."""
        hour_s = int(self._clock_s()) // _HOUR_S * _HOUR_S
        key = (hour_s, tenant, *((adapter.full_name, adapter.version) if adapter else (None, None)))
        counts = self._counts.get(key)
        if counts is None:
            counts = _Counts()
            if len(self._counts) < MAX_WAITING:
                self._counts[key] = counts
            elif not self._is_full:
                self._is_full = True
                log.error("usage of more than %d tenants and adapters waits; some is lost", MAX_WAITING)
        return counts


class Charge:
    """Of one request."""

    def __init__(self, meter: Meter, tenant: str, adapter: AdapterVersion | None, num_prompt_tokens: int) -> None:
        self._meter = meter
        self._tenant = tenant
        self._adapter = adapter
        self._num_prompt_tokens = num_prompt_tokens
        self._has_begun = False

    def add_tokens(self, num_tokens: int) -> None:
        """So many tokens were delivered."""
        if not num_tokens:
            return
        counts = self._counts()
        counts.num_generated_tokens += num_tokens
        if not self._has_begun:
            self._has_begun = True
            counts.num_requests += 1
            counts.num_prompt_tokens += self._num_prompt_tokens

    def add_gpu_time(self, gpu_s: float) -> None:
        if gpu_s:
            self._counts().gpu_s += gpu_s

    def _counts(self) -> _Counts:
        return self._meter.counts(self._tenant, self._adapter)
