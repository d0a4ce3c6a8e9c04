"""The LLMs of this process that are open: the one that a notebook's cell made is still there when the cell runs again.

The name still refers to the old LLM while the new one is made, so nothing can close the old one but its owner.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from punica_serve.config.device_groups import ranks_of
from punica_serve.errors import ConfigError

#: LLM -> the devices that it has, with commas between.
_open: weakref.WeakKeyDictionary[object, str] = weakref.WeakKeyDictionary()


def opened(llm: object, devices: str) -> None:
    """The LLM has these devices until it is closed or dropped."""
    _open[llm] = devices


def closed(llm: object) -> None:
    """The LLM has no device any more. May be called again."""
    _open.pop(llm, None)


@contextmanager
def naming_open_ones(devices: str) -> Iterator[None]:
    """Adds to a ConfigError that an LLM which is still open has one of these devices, if one has."""
    try:
        yield
    except ConfigError as error:
        held = {device for others in _open.values() for device in ranks_of(others)}
        shared = " and ".join(dict.fromkeys(device for device in ranks_of(devices) if device in held))
        if not shared:
            raise
        advice = f"another LLM of this process is open on {shared}: call its close() first"
        raise ConfigError(f"{error.message}; {advice}", param=error.param) from error
