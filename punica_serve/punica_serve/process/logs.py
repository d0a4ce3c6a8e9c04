"""Log lines of every process: text for people, or JSON objects for programs, with fields that say what they are about.

    log.info("request ended", extra=about(request_id=..., tokens=12))

A line about a request has its id, either from ``about`` or from REQUEST_ID while a request is being served.
"""

import json
import logging
import re
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import Any

from punica_serve.protocol import Request

#: The id of the request that is being served, as the client knows it.
REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)


#: Characters that end a field's value: a client's words could pass for a field of ours.
_AMBIGUOUS = re.compile(r'[\s"=]')
#: Characters that end a line or move a terminal's cursor: a client's words could pass for a line of ours.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

#: Our packages, and how their rooms' names begin. Those of the library stand alone.
_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "punica_frontend": ("frontend",),
    "punica_kernels": ("kernels",),
    "punica_runner": ("runner",),
    "punica_scheduler": ("scheduler",),
    "punica_serve": (),
}


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


def configure_logging(name: str, level: LogLevel, form: LogFormat = LogFormat.TEXT) -> None:
    """Sends log records of this process to stderr, one line each, with the process's name."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(name) if form is LogFormat.JSON else TextFormatter(name))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def about(**fields: Any) -> dict[str, Any]:
    """Fields for the ``extra`` of a log call. Those that are None are left out."""
    return {"fields": {name: value for name, value in fields.items() if value is not None}}


def named(request: Request) -> dict[str, Any]:
    """The fields of a request for a log line behind the frontend, where adapters have digests and no names."""
    return {"request_id": request.request_id, "tenant": request.tenant, "adapter": request.digest}


@cache
def room_of(logger: str) -> str:
    """The stable name of the room that a logger's module belongs to, such as ``frontend.generation`` or ``registry``.

    Modules move and are renamed within a room, so programs that read logs should not depend on their paths. A logger of
    another package keeps its name.
    """
    package, *path = logger.split(".")
    if package not in _PACKAGES:
        return logger
    rooms = [*_PACKAGES[package], *path[:-1][:1]]
    return ".".join(rooms) or "serve"


class TextFormatter(logging.Formatter):
    """`time process LEVEL message name=value ...` in one line, and a traceback where there is one."""

    def __init__(self, process: str) -> None:
        super().__init__(f"%(asctime)s {process} %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = (f"{name}={_quoted(value)}" for name, value in _fields(record).items())
        return _CONTROL.sub(_escaped, " ".join([super().formatMessage(record), *fields]))


class JsonFormatter(logging.Formatter):
    """One JSON object on one line, whatever the message contains."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": room_of(record.name),
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _quoted(value: object) -> object:
    """A value that could pass for several fields is quoted: clients choose some."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) and _AMBIGUOUS.search(value) else value


def _escaped(control: re.Match[str]) -> str:
    return control[0].encode("unicode_escape").decode()


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    if "request_id" not in fields and (request_id := REQUEST_ID.get()) is not None:
        return {"request_id": request_id, **fields}
    return fields
