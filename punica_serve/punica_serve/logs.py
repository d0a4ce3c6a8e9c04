"""Log lines of every process: text for people, or a JSON object each for programs, and what a line is about.

    log.info("request ended", extra=about(request_id=..., tokens=12))

A line that is about a request carries its id: by ``about``, or by REQUEST_ID where a request is being served.
"""

import json
import logging
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from punica_serve.protocol import Request

#: The id of the request that is being served, as its client knows it.
REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


def configure_logging(name: str, level: LogLevel, form: LogFormat = LogFormat.TEXT) -> None:
    """Log records of this process go to stderr, a line each, with the process's name."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(name) if form is LogFormat.JSON else TextFormatter(name))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def about(**fields: Any) -> dict[str, Any]:
    """For ``extra`` of a log call: what the line is about. None says nothing."""
    return {"fields": {name: value for name, value in fields.items() if value is not None}}


def named(request: Request) -> dict[str, Any]:
    """What a line about a request says of it behind the frontend, where adapters have no names."""
    digest = request.adapter.digest if request.adapter else None
    return {"request_id": request.request_id, "tenant": request.tenant, "adapter": digest}


class TextFormatter(logging.Formatter):
    """`time process LEVEL message name=value ...`, and a traceback where there is one."""

    def __init__(self, process: str) -> None:
        super().__init__(f"%(asctime)s {process} %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return " ".join(
            [super().formatMessage(record), *(f"{name}={value}" for name, value in _fields(record).items())]
        )


class JsonFormatter(logging.Formatter):
    """An object on a line of its own, whatever the message holds."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    if "request_id" not in fields and (request_id := REQUEST_ID.get()) is not None:
        return {"request_id": request_id, **fields}
    return fields
