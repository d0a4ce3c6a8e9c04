"""Tests that the host never waits for the device."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def waits_are_errors() -> Iterator[None]:
    """Fails where torch would make the host wait for the device. Nothing may be under way there yet."""
    torch.cuda.synchronize()
    try:
        _set_mode("error")
        yield
    finally:
        _set_mode("default")


def _set_mode(mode: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # says that the mode does not know every call that waits
        torch.cuda.set_sync_debug_mode(mode)
