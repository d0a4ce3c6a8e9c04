"""Triton's interpreter, faster or with its checks on: the only module that touches its undocumented parts.

Written for Triton 3.6 and 3.7, in which no launch and no setting chooses the interpreter's options, nor what it does in
a call of one kernel by another. tests/kernels/test_triton_interpreter.py names a part that another version lacks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from triton.runtime.interpreter import InterpretedFunction, interpreter_builder


@contextmanager
def fast_interpreter() -> Iterator[set[str]]:
    """Replaces functions of `triton.language` by the interpreter's once for each module, and checks no overflows.

    The interpreter looks for functions to replace in each call of one kernel by another; but a launch replaces what it
    has restored at its end by itself. And it compares each sum of 32 bits with that of 64, though no number of a small
    case is that large. Yields the names of the modules that it has met.
    """
    call_and_replace = InterpretedFunction.__call__
    modules: set[str] = set()

    def call(function: InterpretedFunction[Any], *args: Any, **kwargs: Any) -> Any:
        if function.fn.__module__ in modules:
            return function.rewrite()(*args, **kwargs)
        modules.add(function.fn.__module__)
        return call_and_replace(function, *args, **kwargs)

    with patch.object(InterpretedFunction, "__call__", call), _options(sanitize_overflow=False):
        yield modules


@contextmanager
def interpreter_with_asserts() -> Iterator[None]:
    """Has `tl.device_assert` raise, as it does in kernels that are launched with `debug`."""
    with _options(debug=True):
        yield


@contextmanager
def _options(**changed: bool) -> Iterator[None]:
    with patch.object(interpreter_builder, "options", replace(interpreter_builder.options, **changed)):
        yield
