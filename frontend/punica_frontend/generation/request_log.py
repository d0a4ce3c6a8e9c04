"""Logs each request's start (debug) and end (info)."""

import logging

from punica_frontend.metrics.metrics import RequestMetrics
from punica_serve.process.logs import about
from punica_serve.protocol import Request

log = logging.getLogger(__name__)


def log_added(request: Request, adapter: str) -> None:
    if log.isEnabledFor(logging.DEBUG):
        fields = about(request_id=request.request_id, tenant=request.tenant, adapter=adapter)
        log.debug("request added", extra=fields)


def log_end(request: Request, answer_id: str, adapter: str, metrics: RequestMetrics, now_s: float) -> None:
    """Logs a request's outcome, tokens and latencies, and the client's own id if it gave one."""
    if log.isEnabledFor(logging.INFO):
        fields = about(
            request_id=request.request_id,
            answer_id=answer_id if answer_id != request.request_id else None,
            tenant=request.tenant,
            adapter=adapter,
            outcome=metrics.outcome,
            prompt_tokens=len(request.prompt_ids),
            tokens=metrics.num_tokens,
            ttft_s=_rounded(metrics.first_token_s),
            duration_s=_rounded(now_s - metrics.arrived_s),
        )
        log.info("request ended", extra=fields)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
