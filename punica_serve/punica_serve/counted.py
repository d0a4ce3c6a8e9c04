"""Counts in messages."""


def counted(count: int, what: str) -> str:
    """As in "1 GPU" and "2 GPUs": ``what`` is a noun in the singular."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
