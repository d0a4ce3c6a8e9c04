"""Activated adapters (aLoRA, Greenewald et al., 2025): where in a prompt they are invoked."""

from array import array
from collections.abc import Sequence

from punica_serve.protocol import Request


def invocation_start(request: Request) -> int | None:
    """The first row that a request's adapter updates: 0, unless it is activated. None: it is not invoked.

    It is the last place of the invocation in the prompt, so a request that moves keeps it, whatever it has generated.
    """
    if request.adapter is None or not request.adapter.invocation:
        return 0
    return _last_place(request.prompt_ids, request.adapter.invocation)


def _last_place(tokens: Sequence[int], wanted: Sequence[int]) -> int | None:
    """Searched for in bytes, since a prompt may be long."""
    where, what = array("I", tokens), array("I", wanted)
    text, pattern = where.tobytes(), what.tobytes()
    end = len(text)
    while (place := text.rfind(pattern, 0, end)) >= 0:
        if place % where.itemsize == 0:
            return place // where.itemsize
        end = place + len(pattern) - 1
    return None
