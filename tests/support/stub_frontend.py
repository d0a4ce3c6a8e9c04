"""A small HTTP server in place of the frontend: its answers, and the requests it got."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class StubFrontend:
    """Answers every request with the next of ``answers``."""

    url: str = ""
    answers: list[tuple[int, Any]] = field(default_factory=list)
    #: "METHOD /path?query" of each request.
    requests: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
