"""The policy for unknown fields: they are refused, or, if the operator chose so, ignored and reported."""

import logging
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar

from starlette.responses import Response

from punica_frontend.fields.lenient_body import LenientBody
from punica_frontend.fields.unknown import UnknownField, unknown_fields
from punica_frontend.metrics.metrics import Metrics
from punica_serve.config.frontend_section import UnknownFields
from punica_serve.errors import InvalidRequest
from punica_serve.process.limited_log import LimitedLog

log = logging.getLogger(__name__)

#: The response header with the ignored fields' names, without indices of messages.
HEADER = "X-Punica-Ignored-Fields"

#: Unknown fields of one body. With more the body is refused, since an adapter's name could be among the rest.
MAX_UNKNOWN = 64
#: Names in a header, a frame or a log line.
MAX_NAMED = 16
#: Seconds between two log lines.
LOG_EVERY_S = 10.0

R = TypeVar("R", bound=Response)


class FieldPolicy:
    """A frontend's policy for unknown fields."""

    def __init__(
        self, mode: UnknownFields, metrics: Metrics, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._mode = mode
        self._metrics = metrics
        self._log = LimitedLog(log, LOG_EVERY_S, monotonic=monotonic)

    def check(self, body: LenientBody) -> tuple[str, ...]:
        """Returns the names of ignored fields. Raises InvalidRequest if one is refused."""
        found = list(islice(unknown_fields(body), MAX_UNKNOWN + 1))
        if not found:
            return ()
        refused = self._refused(found)
        names = list(dict.fromkeys(field.label for field in found))
        for name in names:
            self._metrics.unknown_field(name, "refused" if refused else "ignored")
        if refused:
            raise refused
        ignored = _names_to_show(names)
        self._log.warning("ignored unsupported fields of a request: %s", ", ".join(ignored))
        return ignored

    def _refused(self, found: Sequence[UnknownField]) -> InvalidRequest | None:
        first = next((field for field in found if field.names_an_adapter), None)
        if first is None and self._mode == "warn" and len(found) <= MAX_UNKNOWN:
            return None
        first = first or found[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        return InvalidRequest(f"`{first.param}` is not supported here; {first.advice}{more}", param=first.param)


def with_ignored(response: R, ignored: Sequence[str]) -> R:
    """Adds the header that names the ignored fields."""
    if ignored:
        response.headers[HEADER] = ", ".join(ignored)
    return response


def _names_to_show(names: Sequence[str | None]) -> tuple[str, ...]:
    plain = [name for name in names if name is not None]
    to_show = plain[:MAX_NAMED]
    return (*to_show, "...") if len(to_show) < len(names) else tuple(to_show)
