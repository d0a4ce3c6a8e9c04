"""The config sections `tls` and `frontend.tls`: TLS between processes, and towards clients."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import ModelWrapValidatorHandler, TypeAdapter, ValidationError, ValidationInfo, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from punica_serve.config.fields import ConfigModel, File
from punica_serve.errors.reasons import why_unreadable

_FILE = TypeAdapter(File)


class HttpsConfig(ConfigModel):
    """A frontend's certificate, with its intermediates, and its key, in PEM format."""

    cert: File
    key: File

    @model_validator(mode="wrap")
    @classmethod
    def _tell_of_files_too(cls, given: Any, check: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        """If one file is missing from the section, reports unreadable ones at the same time, not at the next attempt.

        A complete section is left to the processes that use the files: most commands don't.
        """
        try:
            return check(given)
        except ValidationError as error:
            mistakes = [_details(one) for one in error.errors()]
            wrong = {name for mistake in mistakes for name in mistake["loc"]}
            given_well = given.keys() - wrong if isinstance(given, Mapping) else ()
            files = {name: _FILE.validate_python(given[name], context=info.context) for name in sorted(given_well)}
            raise ValidationError.from_exception_data(error.title, [*mistakes, *_unreadable(files)]) from error


class TlsConfig(HttpsConfig):
    """Certificates in PEM format. Every process has its own, signed by the cluster's authority."""

    #: Certificate of the authority that must have signed every peer's certificate.
    ca: File


def _unreadable(files: Mapping[str, Path]) -> list[InitErrorDetails]:
    whys = {name: why_unreadable(file) for name, file in files.items()}
    return [
        InitErrorDetails(
            type=PydanticCustomError("unreadable", "can't be read: {why}", {"why": why}),
            loc=(name,),
            input=str(files[name]),
        )
        for name, why in whys.items()
        if why is not None
    ]


def _details(error: Mapping[str, Any]) -> InitErrorDetails:
    kind = PydanticCustomError(error["type"], error["msg"], error.get("ctx"))
    return InitErrorDetails(type=kind, loc=error["loc"], input=error["input"])
