"""A user's own text in a message, shortened: a longer one would hide the message itself."""


def shortened(text: str, max_chars: int = 200) -> str:
    return text if len(text) <= max_chars else f"{text[:max_chars]}..."
