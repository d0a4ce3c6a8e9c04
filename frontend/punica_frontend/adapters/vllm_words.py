"""What vLLM says of adapters, word for word: programs look for its messages and types."""

from fastapi import Response
from fastapi.responses import JSONResponse
from typing_extensions import TypedDict

from punica_frontend.errors import status_of, tell_operator
from punica_serve.errors import Forbidden, InvalidRequest, PunicaError

#: vLLM's ``type`` of an error, by its status.
_TYPES = {400: "InvalidUserInput", 403: "PermissionDeniedError", 404: "NotFoundError", 429: "RateLimitError"}


class VllmErrorObject(TypedDict):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    #: The HTTP status.
    code: int


class VllmErrorBody(TypedDict):
    """An error in vLLM's shape."""

    error: VllmErrorObject


def vllm_error(status: int, message: str) -> Response:
    kind = _TYPES.get(status, "InternalServerError")
    error = VllmErrorObject(message=message, type=kind, param=None, code=status)
    return JSONResponse(VllmErrorBody(error=error), status)


def vllm_refusal(error: PunicaError) -> Response:
    """vLLM blames the client for its words alone: an adapter that can't be loaded is 500."""
    tell_operator(error)
    is_clients = isinstance(error, InvalidRequest | Forbidden) or status_of(error) not in (400, 409)
    return vllm_error(status_of(error) if is_clients else 500, error.message)


def name_is_taken(name: str) -> Response:
    message = f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set"
    return vllm_error(400, f"{message} 'load_inplace' to True.")


def uri_of(lora_path: str) -> str:
    """What vLLM calls a path is a folder if it looks like one, else a repository of the Hub."""
    if "://" in lora_path:
        return lora_path
    return f"file://{lora_path}" if lora_path.startswith("/") else f"hf://{lora_path}"
