"""From what a worker reports to what a frontend is told."""

from punica_scheduler.actions import Deliver
from punica_scheduler.request import RequestRecord
from punica_serve.protocol import AssignmentId, Delivery, FinishReason, StepReport, StepToken, WireError

#: Tokens of one request, and why it ended after them, if it did.
Outcome = tuple[list[StepToken], FinishReason | None]


def outcomes_of(report: StepReport) -> dict[AssignmentId, Outcome]:
    """What one step made of each assignment."""
    outcomes: dict[AssignmentId, Outcome] = {end.assignment: ([], end.reason) for end in report.finished}
    for token in report.tokens:
        outcomes.setdefault(token.assignment, ([], None))[0].append(token)
    return outcomes


def deliver_outcome(record: RequestRecord, position: int, outcome: Outcome) -> Deliver:
    """Tokens from ``position`` on, and the end if there is one."""
    tokens, reason = outcome
    token_ids = tuple(token.token_id for token in tokens)
    logprobs = tuple(token.logprobs for token in tokens if token.logprobs is not None)
    return Deliver(record.frontend_id, Delivery(record.request_id, position, token_ids, logprobs, reason))


def deliver_error(record: RequestRecord, error: WireError) -> Deliver:
    """The end of a request that failed."""
    end = Delivery(record.request_id, len(record.generated_ids), finish_reason="error", error=error)
    return Deliver(record.frontend_id, end)
