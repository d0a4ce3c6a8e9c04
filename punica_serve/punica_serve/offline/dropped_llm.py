"""The end of groups whose LLM was dropped without a ``close``: a process leads one group at a time."""

import gc
import threading
import time
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from punica_serve.engine.engine import Engine

#: Longest wait for groups that are being closed. A step in flight and the ranks end within.
_CLOSE_TIMEOUT_S = 30.0

#: LLMs that lead a group and may be open.
_leaders: weakref.WeakSet[object] = weakref.WeakSet()
#: Threads that close the engines of dropped ones.
_closing: set[threading.Thread] = set()


def close_when_dropped(llm: object, engine: "Engine") -> "weakref.finalize[[Engine], object]":
    """Closes the engine of an LLM that leads a group, once nothing refers to the LLM. An exit of the process does not.

    The engine lives until then, so it must not refer to the LLM. ``detach`` the result when the LLM is closed.
    """
    _leaders.add(llm)
    closing = weakref.finalize(llm, _start_closing, engine)
    closing.atexit = False  # the ranks end with this process anyway
    return closing


def await_dropped() -> None:
    """Returns when the groups of LLMs that nothing refers to have ended, or after 30 s."""
    if _leaders:
        gc.collect()  # one that an old traceback holds in a cycle
    deadline_s = time.monotonic() + _CLOSE_TIMEOUT_S
    for thread in tuple(_closing):
        thread.join(max(0.0, deadline_s - time.monotonic()))


def _start_closing(engine: "Engine") -> None:
    """On a thread of its own: the garbage collector may run on one that the engine waits for as it closes."""
    thread = threading.Thread(target=_close, args=(engine,), name="engine-closer")
    _closing.add(thread)
    thread.start()


def _close(engine: "Engine") -> None:
    try:
        if engine.device.type == "cuda":
            import torch

            torch.cuda.set_device(engine.device)  # each thread has its own
        engine.close()
    finally:
        _closing.discard(threading.current_thread())
