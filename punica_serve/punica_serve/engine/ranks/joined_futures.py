"""A future that ends when several have."""

from concurrent.futures import Future
from threading import Lock
from typing import Any

from punica_serve.engine.adapters.copy_error import copy_error


def joined(*parts: "Future[Any]") -> "Future[None]":
    """Ends when all parts have, with the first one's error, if any has failed."""
    whole: Future[None] = Future()
    lock, num_running = Lock(), len(parts)

    def end(_: object) -> None:
        nonlocal num_running
        with lock:
            num_running -= 1
            if num_running:
                return
        errors = [error for part in parts if (error := copy_error(part)) is not None]
        if errors:
            whole.set_exception(errors[0])
        else:
            whole.set_result(None)

    for part in parts:
        part.add_done_callback(end)
    return whole
