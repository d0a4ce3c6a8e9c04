"""Counts, and numbers in messages."""

#: The largest count that every layer below can hold: 32 bits, signed.
MAX_COUNT = (1 << 31) - 1


def counted(count: int, what: str) -> str:
    """As in "1 GPU" and "2 GPUs": ``what`` is a noun in the singular."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def limit(value: object) -> str:
    """As in "at most 2147483647" and "more than 0": whole numbers to the last digit, others without zeros."""
    return f"{value:g}" if isinstance(value, float) else f"{value}"
