"""Which GPUs know the beginnings of prompts, by their workers' hints: the tie-breaker between equal GPUs.

A hint stands for the tokens of 1, 2, 4 ... pages. Hints may be outdated, since workers do not say what they have given
away; then a request merely computes its whole prompt. Both directions are bounded, so no worker and no popular prompt
sizes this memory.
"""

from collections import OrderedDict
from collections.abc import Iterable

from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.request import RequestRecord
from punica_serve.errors.invariants import require
from punica_serve.paging.prefix_hash import hints_of

#: The newest hints of a GPU, and the newest GPUs of a hint.
MAX_HINTS, MAX_GPUS = 1024, 16


class KnownPrefixes:
    """Hints of all GPUs. Those of a draining one are kept, since it may be taken back, and told to nobody meanwhile."""

    def __init__(self) -> None:
        self._hints: dict[GpuRecord, OrderedDict[int, None]] = {}
        self._gpus: dict[int, OrderedDict[GpuRecord, None]] = {}

    def add(self, gpu: GpuRecord, hints: Iterable[int]) -> None:
        """The GPU's worker says that it knows these prefixes."""
        own = self._hints.setdefault(gpu, OrderedDict())
        for hint in hints:
            own[hint] = None
            own.move_to_end(hint)
            gpus = self._gpus.setdefault(hint, OrderedDict())
            gpus[gpu] = None
            gpus.move_to_end(gpu)
            if len(gpus) > MAX_GPUS:
                del self._hints[gpus.popitem(last=False)[0]][hint]
        while len(own) > MAX_HINTS:
            self._forget(gpu, own.popitem(last=False)[0])

    def discard(self, gpu: GpuRecord) -> None:
        """The GPU is gone, and its pages with it."""
        for hint in self._hints.pop(gpu, ()):
            self._forget(gpu, hint)

    def knowing(self, record: RequestRecord) -> list[GpuRecord]:
        """Open GPUs that know a beginning of the request, the longest first, then those that told of it last."""
        if not self._gpus:
            return []
        found: dict[GpuRecord, None] = {}
        for hint in reversed(self._hints_of(record)):
            found.update(dict.fromkeys(reversed(self._gpus.get(hint, {}))))
        return [gpu for gpu in found if not gpu.is_draining]

    def num_known_tokens(self, record: RequestRecord, besides: GpuRecord) -> int:
        """Tokens of the longest beginning that any other open GPU knows, at least."""
        if not self._gpus:
            return 0
        hints = self._hints_of(record)
        for place in range(len(hints) - 1, -1, -1):
            if any(gpu is not besides and not gpu.is_draining for gpu in self._gpus.get(hints[place], {})):
                return besides.info.page_size << place
        return 0

    def _hints_of(self, record: RequestRecord) -> tuple[int, ...]:
        """By the settings of a GPU that has hints: those of a cluster are alike, and others match nothing."""
        info = next(iter(self._hints)).info
        if record.prefix_hints is None or record.prefix_hints[0] != record.num_tokens:
            request, settings = record.request, info.prefix_caching
            token_ids = (*request.prompt_ids, *record.generated_ids) if record.generated_ids else request.prompt_ids
            hints = hints_of(request, settings, info.page_size, token_ids) if settings else ()
            record.prefix_hints = (record.num_tokens, hints)
        return record.prefix_hints[1]

    def _forget(self, gpu: GpuRecord, hint: int) -> None:
        gpus = self._gpus[hint]
        del gpus[gpu]
        if not gpus:
            del self._gpus[hint]

    def check_invariants(self, gpus: Iterable[GpuRecord]) -> None:
        """AssertionError is a bug of ours."""
        require(self._hints.keys() <= set(gpus), "hints of a GPU that is gone")
        told = {(gpu, hint) for gpu, hints in self._hints.items() for hint in hints}
        kept = {(gpu, hint) for hint, knowing in self._gpus.items() for gpu in knowing}
        require(told == kept, "the hints of GPUs differ from the GPUs of hints")
        require(all(len(hints) <= MAX_HINTS for hints in self._hints.values()), "a GPU has too many hints")
        require(all(0 < len(knowing) <= MAX_GPUS for knowing in self._gpus.values()), "a hint has too many GPUs")
