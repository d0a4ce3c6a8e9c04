"""Client of a cluster's adapter API."""

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import httpx

from punica_serve.errors import ConfigError, InvalidRequest
from punica_serve.links.client_errors import message_of, no_answer, wants_key
from punica_serve.links.https_client import client_context

CONNECT_TIMEOUT_S = 10.0
#: Registering waits until the cluster has fetched, checked and stored the files.
ANSWER_TIMEOUT_S = 900.0
#: Adapters per answer.
_PAGE = 1000


class AdapterClient:
    """A connection for one command."""

    def __init__(self, url: str, key: str | None) -> None:
        self._url = url
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        self._http = httpx.Client(headers=headers, timeout=timeout, verify=client_context(), trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str, params: dict[str, Any] | None = None) -> Any:
        return self.send("GET", path, params=params)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self.send("POST", path, json=body)

    def delete(self, path: str, params: dict[str, Any]) -> Any:
        return self.send("DELETE", path, params=params)

    def all_adapters(self) -> Iterator[dict[str, Any]]:
        """All adapters, read page by page."""
        after: dict[str, Any] = {}
        while True:
            page = self.get("/v1/adapters", {"limit": _PAGE, **after})
            yield from page["data"]
            if not page["has_more"]:
                return
            after = {"after": page["data"][-1]["full_name"]}

    def send(self, method: str, path: str, **request: Any) -> Any:
        """Sends a request; returns the answer's JSON.

        Raises ConfigError for an invalid URL, Unauthorized, ClusterUnavailable if no frontend answers, and
        InvalidRequest with the message of a frontend that refuses.
        """
        try:
            url = httpx.URL(self._url.rstrip("/") + path)
            answer = self._http.request(method, url, **request)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            message = f"{self._url!r} (`--url`, PUNICA_URL) is not of the form http://HOST:PORT"
            raise ConfigError(message, param="url") from error
        except httpx.HTTPError as error:
            raise no_answer(self._url, error) from error
        if answer.is_success:
            return self._decoded(answer)
        if answer.status_code == 401:
            raise wants_key(self._url)
        raise InvalidRequest(message_of(str(answer.request.url), answer.status_code, answer.content))

    def _decoded(self, answer: httpx.Response) -> Any:
        """The object in a frontend's answer. Raises ConfigError if something else answers."""
        with contextlib.suppress(ValueError):
            if isinstance(document := answer.json(), dict):
                return document
        message = f"{answer.request.url} does not answer like a frontend; give a frontend's address with `--url`"
        raise ConfigError(message, param="url")
