"""A line in the log for each request's end."""

import logging

from punica_frontend.metrics.figures import RequestFigures
from punica_serve.logs import about
from punica_serve.protocol import Request

log = logging.getLogger(__name__)


def log_added(request: Request, adapter: str) -> None:
    if log.isEnabledFor(logging.DEBUG):
        fields = about(request_id=request.request_id, tenant=request.tenant, adapter=adapter)
        log.debug("request added", extra=fields)


def log_end(request: Request, adapter: str, figures: RequestFigures, now_s: float) -> None:
    """What operators ask of one request."""
    if log.isEnabledFor(logging.INFO):
        fields = about(
            request_id=request.request_id,
            tenant=request.tenant,
            adapter=adapter,
            outcome=figures.outcome,
            prompt_tokens=len(request.prompt_ids),
            tokens=figures.num_tokens,
            ttft_s=_rounded(figures.first_token_s),
            duration_s=_rounded(now_s - figures.arrived_s),
        )
        log.info("request ended", extra=fields)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
