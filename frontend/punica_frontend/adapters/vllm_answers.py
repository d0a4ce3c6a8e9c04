"""vLLM's answers about adapters, word for word: programs match its messages and types."""

from fastapi import Response
from fastapi.responses import JSONResponse
from typing_extensions import TypedDict

from punica_frontend.api.errors import log_for_operator, status_of
from punica_serve.errors import Forbidden, InvalidRequest, PunicaError

#: vLLM's ``type`` for each status, and for all others of a client's or a server's error.
_TYPES = {400: "InvalidUserInput", 403: "PermissionDeniedError", 404: "NotFoundError", 429: "RateLimitError"}
_CLIENT_ERROR, _SERVER_ERROR = "BadRequestError", "InternalServerError"


class VllmErrorObject(TypedDict):
    """The error itself."""

    message: str
    type: str
    param: str | None
    #: The HTTP status.
    code: int


class VllmErrorBody(TypedDict):
    """An error in vLLM's format."""

    error: VllmErrorObject


def vllm_error(status: int, message: str) -> Response:
    kind = _TYPES.get(status, _CLIENT_ERROR if status < 500 else _SERVER_ERROR)
    error = VllmErrorObject(message=message, type=kind, param=None, code=status)
    return JSONResponse(VllmErrorBody(error=error), status)


def vllm_refusal(error: PunicaError) -> Response:
    """Returns an error in vLLM's format. vLLM answers 500 for an adapter that can't be loaded."""
    log_for_operator(error)
    is_clients = isinstance(error, InvalidRequest | Forbidden) or status_of(error) not in (400, 409)
    return vllm_error(status_of(error) if is_clients else 500, error.message)


def name_is_taken(name: str) -> Response:
    message = f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set"
    return vllm_error(400, f"{message} 'load_inplace' to True.")


def uri_of(lora_path: str) -> str:
    """Returns the URI of vLLM's path: a folder if it is absolute, otherwise a repository of the Hugging Face Hub."""
    if "://" in lora_path:
        return lora_path
    return f"file://{lora_path}" if lora_path.startswith("/") else f"hf://{lora_path}"
