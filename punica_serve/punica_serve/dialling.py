"""A websocket to a frontend, and what is told to who can't have one."""

import re
from typing import TYPE_CHECKING

from punica_serve.errors import ConfigError, InvalidRequest
from punica_serve.refusals import message_of, no_answer, wants_key

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection
    from websockets.http11 import Response

OPEN_TIMEOUT_S = 10.0
#: Who presses Ctrl-C waits for nothing that is still on its way.
CLOSE_TIMEOUT_S = 1.0
#: A frame of /v1/cluster/watch tells of all GPUs and their adapters.
MAX_FRAME_BYTES = 64 << 20


async def dial(url: str, path: str, key: str | None) -> "ClientConnection":
    """A websocket to a frontend.

    Raises ConfigError for a URL that is none, Unauthorized, InvalidRequest with what a frontend says that refuses (its
    answers 4xx), and ClusterUnavailable where none answers.
    """
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidStatus, InvalidURI, WebSocketException

    try:
        return await connect(
            re.sub("^http", "ws", url).rstrip("/") + path,
            additional_headers={"Authorization": f"Bearer {key}"} if key else None,
            proxy=None,
            open_timeout=OPEN_TIMEOUT_S,
            close_timeout=CLOSE_TIMEOUT_S,
            max_size=MAX_FRAME_BYTES,
        )
    except (InvalidURI, ValueError) as error:
        raise ConfigError(f"{url!r} (`--url`, PUNICA_URL) is not of the form http://HOST:PORT", param="url") from error
    except (OSError, WebSocketException) as error:
        if isinstance(error, InvalidStatus):
            _check_refusal(url, error.response)
        raise no_answer(url, error) from error


def _check_refusal(url: str, response: "Response") -> None:
    """Raises for what does not become better by itself."""
    if response.status_code == 401:
        raise wants_key(url)
    if 400 <= response.status_code < 500:
        raise InvalidRequest(message_of(url, response.status_code, response.body or b""))
