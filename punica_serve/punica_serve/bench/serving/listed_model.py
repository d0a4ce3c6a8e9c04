"""The name that a server has for its base model, by its own list."""

from http import HTTPStatus
from urllib.parse import urlsplit

import httpx

from punica_serve.errors import ClusterUnavailable, RequestFailed
from punica_serve.links.client_errors import message_of, no_answer

_TIMEOUT_S = 60.0


def base_name(url: str, key: str | None) -> str:
    """The first model that a server lists, which is the base model, here and in vLLM.

    Raises ClusterUnavailable, and RequestFailed if it refuses.
    """
    address = f"{url.rstrip('/')}/v1/models"
    headers = {"Authorization": f"Bearer {key}"} if key else None
    try:
        answer = httpx.get(address, headers=headers, timeout=_TIMEOUT_S, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise no_answer(url, error) from error
    if answer.status_code == HTTPStatus.NOT_FOUND:
        raise RequestFailed(f"{address} answered 404: `--url` is what comes before /v1; {_advice(url)}")
    if not answer.is_success:
        raise RequestFailed(message_of(url, answer.status_code, answer.content))
    try:
        return str(answer.json()["data"][0]["id"])
    except (ValueError, LookupError, TypeError) as error:
        message = f"{address} does not list models as OpenAI's API does; set `--url` to a server that does"
        raise ClusterUnavailable(message) from error


def _advice(url: str) -> str:
    """What may be wrong with the path: clients of OpenAI's API take URLs that end with /v1."""
    parts = urlsplit(url)
    before, ending, _ = f"{parts.path}/".partition("/v1/")
    if not ending:
        return "check its path"
    return f"give {parts._replace(path=before, query='', fragment='').geturl()}"
