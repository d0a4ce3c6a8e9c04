"""Counts, and numbers in messages and names."""

import re

#: The largest count that every layer below can hold: 32 bits, signed.
MAX_COUNT = (1 << 31) - 1
#: The largest integer of a database, and of the system's calls: 64 bits, signed.
MAX_INT64 = (1 << 63) - 1
_GIB = 1 << 30


def counted(count: int, what: str) -> str:
    """A count with its noun, such as "1 GPU" and "2 GPUs". ``what`` is the singular."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def gib(num_bytes: float) -> str:
    """Bytes in GiB, to one decimal."""
    return f"{num_bytes / _GIB:.1f} GiB"


def is_count(text: str, max_digits: int = 19) -> bool:
    """Whether a text is a whole number in ASCII digits, by default no more than 64 bits hold (``int`` has a limit)."""
    return text.isascii() and text.isdecimal() and len(text) <= max_digits


def limit(value: object) -> str:
    """A limit as text: all digits of a whole number, and no trailing zeros."""
    if not isinstance(value, float):
        return f"{value}"
    return f"{value:.0f}" if value.is_integer() else f"{value:g}"


def natural_order(name: str) -> list[tuple[int, str]]:
    """A key for sorting, by which host/2 comes before host/10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
