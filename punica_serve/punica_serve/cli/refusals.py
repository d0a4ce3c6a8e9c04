"""What a frontend that refuses a command says."""

import json


def message_of(url: str, status: int, body: bytes | bytearray) -> str:
    """Of the answer to ``url``."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):  # from something else than a frontend
        return f"{url} answered {status}"
