"""Turns step reports of workers into deliveries for frontends: the hottest path of the cluster."""

from collections.abc import Iterable

from punica_scheduler.core.capacity import STEPS_AHEAD
from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.outcome import Outcome
from punica_scheduler.core.repeated_rows import Share, shares_of
from punica_scheduler.core.request import RequestRecord
from punica_serve.protocol import Deliveries, StepReport, with_row_headers


def apply_step_report(report: StepReport, gpu: GpuRecord, outcome: Outcome) -> dict[int, str]:
    """Accepts and delivers each token that is its request's next: no gap, no repeat, none too many.

    Returns the first fault of each broken stream, by the assignment's counter. Drops late tokens of assignments that
    were stopped.
    """
    if not report.token_ids:
        return {}
    num_begun = 0
    rows = gpu.repeated_rows
    if rows is None or not rows.is_continued_by(report):
        full = with_row_headers(report, gpu.newest_full_report)
        if full is None:
            return dict.fromkeys(gpu.working_set, "tokens without row headers")
        if not report.num_repeats:
            gpu.newest_full_report = report
        rows = gpu.begin_repeated_rows(full, report.num_repeats)
        if rows is None:
            return _take_row_by_row(full, gpu, outcome)
        num_begun = len(rows.newcomers)
    num_rows = len(report.token_ids)
    _note_gap(num_rows, num_rows - num_begun, gpu, outcome)
    if num_begun:
        for record in rows.newcomers:
            _note_begin(record, gpu, report, outcome)
    offset = rows.num_steps
    gpu.num_pages_ahead += rows.take(report)
    _deliver(report, rows.shares, offset, outcome)
    if (ending := rows.ending()) or gpu.ending:
        gpu.expect_ends(ending)
    return {}


def _take_row_by_row(report: StepReport, gpu: GpuRecord, outcome: Outcome) -> dict[int, str]:
    """Applies a report row by row, where rows are of stopped requests or not at their next positions."""
    broken: dict[int, str] = {}
    taken: list[int] = []
    records: list[RequestRecord] = []
    num_begun = 0
    row_s = report.duration_s / len(report.assignments)
    rows = zip(report.assignments, report.positions, report.token_ids, strict=True)
    for row, (counter, position, token_id) in enumerate(rows):
        record = gpu.working_set.get(counter)
        if record is None:
            continue
        if position != record.num_generated or position >= record.max_tokens:
            broken.setdefault(counter, f"token {position}")
            continue
        if position == record.num_generated_at_start:
            num_begun += 1
            _note_begin(record, gpu, report, outcome)
        gpu.num_pages_ahead -= gpu.pages_ahead_of(record)
        record.accept_token(token_id, row_s)
        gpu.num_pages_ahead += gpu.pages_ahead_of(record)
        taken.append(row)
        records.append(record)
    _note_gap(len(taken), len(taken) - num_begun, gpu, outcome)
    gpu.expect_ends(record for record in records if 0 < record.max_tokens - record.num_generated <= STEPS_AHEAD)
    positions = tuple([report.positions[row] for row in taken])
    _deliver(report, shares_of(taken, records, positions), 0, outcome)
    return broken


def _note_begin(record: RequestRecord, gpu: GpuRecord, report: StepReport, outcome: Outcome) -> None:
    """A request is about to get its first token of this assignment."""
    if record.assignment is not None:
        gpu.load_sums.begun(record.assignment.counter, outcome.now_ns)
    if not record.num_generated_at_start:
        record.end_prefill(outcome.now_ns)
        outcome.first_token_ns.append(outcome.now_ns - record.admitted_ns)
        if gpu.info.prefix_caching is not None and record.assignment is not None:
            num_cached = dict(report.cached).get(record.assignment.counter, 0)
            outcome.cached.setdefault(record.frontend_id, []).append((record.handle, num_cached))


def _note_gap(num_taken: int, num_continued: int, gpu: GpuRecord, outcome: Outcome) -> None:
    """The gap before a token that continues an assignment is the time between two of its GPU's reports."""
    if num_continued:
        gpu.load_sums.slack.stepped()
        outcome.inter_token_ns, outcome.num_continued = outcome.now_ns - gpu.token_ns, num_continued
    gpu.count_tokens(num_taken, outcome.now_ns)


def _deliver(report: StepReport, shares: Iterable[Share], offset: int, outcome: Outcome) -> None:
    for share in shares:
        logprobs = share.pick(report.logprobs) if report.logprobs else ()
        outcome.deliveries[share.frontend_id] = Deliveries(
            share.handles,
            share.positions,
            share.pick(report.token_ids),
            logprobs if any(logprobs) else (),
            offset=offset,
        )
