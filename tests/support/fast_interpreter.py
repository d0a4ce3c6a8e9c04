"""Triton's interpreter without what takes half of its time and finds nothing in small cases."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from triton.runtime.interpreter import InterpretedFunction, interpreter_builder


@contextmanager
def fast_interpreter() -> Iterator[None]:
    """Replaces functions of `triton.language` by the interpreter's once for each module, and checks no overflows.

    The interpreter looks for functions to replace in each call of one kernel by another; but a launch replaces what it
    has restored at its end by itself. And it compares each sum of 32 bits with that of 64, though no number of a small
    case is that large.
    """
    call_and_replace = InterpretedFunction.__call__
    modules: set[str] = set()

    def call(function: InterpretedFunction[Any], *args: Any, **kwargs: Any) -> Any:
        if function.fn.__module__ in modules:
            return function.rewrite()(*args, **kwargs)
        modules.add(function.fn.__module__)
        return call_and_replace(function, *args, **kwargs)

    options = replace(interpreter_builder.options, sanitize_overflow=False)
    with patch.object(InterpretedFunction, "__call__", call), patch.object(interpreter_builder, "options", options):
        yield
