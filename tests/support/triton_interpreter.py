"""Triton's interpreter, faster or with its checks on: the only module that touches its undocumented parts.

Written for Triton 3.6 and 3.7, in which no launch and no setting chooses the interpreter's options, nor what it does in
a call of one kernel by another. tests/kernels/test_triton_interpreter.py names a part that another version lacks.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
from triton.language import core
from triton.runtime import interpreter
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

    with patch.object(InterpretedFunction, "__call__", call), _options(sanitize_overflow=False), _known_types():
        yield modules


@contextmanager
def interpreter_with_asserts() -> Iterator[None]:
    """Has `tl.device_assert` raise, as it does in kernels that are launched with `debug`."""
    with _options(debug=True):
        yield


@contextmanager
def _known_types() -> Iterator[None]:
    """Describes each type once: the interpreter describes it anew for each value, in a third of its time."""
    with (
        patch.object(core.block_type, "__init__", _init_block_type_once(core.block_type.__init__)),
        patch.object(core.tensor, "__init__", _init_tensor),
        patch.object(interpreter, "_get_np_dtype", _np_dtype_once(interpreter._get_np_dtype)),
    ):
        yield


def _init_block_type_once(init: Callable[..., None]) -> Callable[..., None]:
    known: dict[Any, dict[str, Any]] = {}

    def init_or_copy(block: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, *(getattr(size, "value", size) for size in shape))
        if key not in known:
            init(block, element_ty, shape)
            known[key] = dict(vars(block))
        vars(block).update(known[key])

    return init_or_copy


def _init_tensor(tensor: Any, handle: Any, type: Any) -> None:
    tensor.handle, tensor.type, tensor.dtype = handle, type, type.scalar
    tensor.shape, tensor.numel = _tensor_shape(tuple(type.shape) if type.is_block() else ())


@cache
def _tensor_shape(sizes: tuple[int, ...]) -> tuple[Any, Any]:
    """(shape, numel) of a tensor, in constants."""
    return core.tuple([core.constexpr(size) for size in sizes]), core.constexpr(math.prod(sizes))


def _np_dtype_once(get_np_dtype: Callable[[Any], np.dtype[Any]]) -> Callable[[Any], np.dtype[Any]]:
    known: dict[str, np.dtype[Any]] = {}

    def look_up(tt_dtype: Any) -> np.dtype[Any]:
        scalar = tt_dtype.scalar
        if scalar.name not in known:
            known[scalar.name] = get_np_dtype(scalar)
        return known[scalar.name]

    return look_up


@contextmanager
def _options(**changed: bool) -> Iterator[None]:
    with patch.object(interpreter_builder, "options", replace(interpreter_builder.options, **changed)):
        yield
