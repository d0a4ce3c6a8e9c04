"""Errors in OpenAI's terms, such as ``model`` for the native API's ``lora_id``."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from punica_serve.errors import AdapterNotFound, PunicaError


class ModelNotFound(AdapterNotFound):
    """``model`` is neither the base model nor an adapter that the caller may use."""

    code = "model_not_found"


def lora_id_of(model: str | None, base_name: str) -> str | None:
    """Returns the adapter's name: ``base:adapter`` means the adapter; the base model's name, or none, means None."""
    if not model or model == base_name:
        return None
    return model.removeprefix(f"{base_name}:")


@contextmanager
def openai_terms(model: str | None, names: Mapping[str, str]) -> Iterator[None]:
    """Raises errors with the client's field ``names``, and AdapterNotFound as ModelNotFound."""
    try:
        yield
    except AdapterNotFound as error:
        message = f"the model {(model or '')[:200]!r} does not exist; GET /v1/models lists the models"
        raise ModelNotFound(message, param="model") from error
    except PunicaError as error:
        names = {"lora_id": "model", **names}
        if _field_of(error) not in names:
            raise  # an error from itself would be a reference cycle, with the request in its traceback
        raise renamed(error, names) from error


def renamed(error: PunicaError, names: Mapping[str, str]) -> PunicaError:
    """Returns the error with its field renamed, in the message too."""
    name = _field_of(error)
    if name not in names:
        return error
    message = error.message.replace(f"`{name}", f"`{names[name]}")
    param = names[name] + (error.param or "").removeprefix(name)
    return type(error)(message, param=param, retry_after_s=error.retry_after_s)


def _field_of(error: PunicaError) -> str:
    return (error.param or "").partition(".")[0]
