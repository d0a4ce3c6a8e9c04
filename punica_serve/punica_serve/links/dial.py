"""Dials a frontend's websocket, and turns failures into errors for the user."""

import re
from typing import TYPE_CHECKING

from punica_serve.errors import ConfigError, InvalidRequest
from punica_serve.links.client_errors import message_of, no_answer, wants_key
from punica_serve.links.https_client import client_context

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection
    from websockets.http11 import Response

OPEN_TIMEOUT_S = 10.0
#: Ctrl-C should not have to wait for frames on their way.
CLOSE_TIMEOUT_S = 1.0
#: A frame of /v1/cluster/watch lists all GPUs and their adapters.
MAX_FRAME_BYTES = 64 << 20


async def dial(url: str, path: str, key: str | None) -> "ClientConnection":
    """Opens a websocket to a frontend.

    Raises ConfigError for an invalid URL, Unauthorized, InvalidRequest with the frontend's message if it refuses
    (status 4xx), and ClusterUnavailable if no frontend answers.
    """
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidStatus, InvalidURI, WebSocketException

    try:
        return await connect(
            re.sub("^http", "ws", url).rstrip("/") + path,
            ssl=client_context() if url.startswith(("https:", "wss:")) else None,
            additional_headers={"Authorization": f"Bearer {key}"} if key else None,
            proxy=None,
            open_timeout=OPEN_TIMEOUT_S,
            close_timeout=CLOSE_TIMEOUT_S,
            max_size=MAX_FRAME_BYTES,
        )
    except OSError as error:  # before ValueError: an untrusted certificate is both
        raise no_answer(url, error) from error
    except (InvalidURI, ValueError) as error:
        raise ConfigError(f"{url!r} (`--url`, PUNICA_URL) is not of the form http://HOST:PORT", param="url") from error
    except WebSocketException as error:
        if isinstance(error, InvalidStatus):
            _check_refusal(url, error.response)
        raise no_answer(url, error) from error


def _check_refusal(url: str, response: "Response") -> None:
    """Raises if trying again can't help."""
    if response.status_code == 401:
        raise wants_key(url)
    if 400 <= response.status_code < 500:
        raise InvalidRequest(message_of(url, response.status_code, response.body or b""))
