"""From what a worker reports to what frontends are told: the hottest path of the cluster."""

from collections.abc import Iterable

from punica_scheduler.batch import Share, shares_of
from punica_scheduler.decision import Decision
from punica_scheduler.gpu import GpuRecord
from punica_scheduler.recent import Recent
from punica_scheduler.request import RequestRecord
from punica_serve.protocol import Deliveries, StepReport, with_names


def take_tokens(report: StepReport, gpu: GpuRecord, recent: Recent, decision: Decision) -> dict[int, str]:
    """Takes and delivers each token that is its request's next: no gap, no repeat, none too many.

    Returns what broke a stream first, by counter of assignment. Late tokens of assignments that have been stopped are
    dropped.
    """
    if not report.token_ids:
        return {}
    num_begun = 0
    batch = gpu.batch
    if batch is None or not batch.is_continued_by(report):
        named = with_names(report, gpu.naming)
        if named is None:
            return dict.fromkeys(gpu.working_set, "tokens without names")
        if not report.num_repeats:
            gpu.naming = report
        batch = gpu.begin_batch(named, report.num_repeats)
        if batch is None:
            return _take_row_by_row(named, gpu, recent, decision)
        num_begun = len(batch.newcomers)
        for record in batch.newcomers:
            _note_begin(record, recent, decision)
    offset = batch.num_steps
    gpu.num_pages_ahead += batch.take(report)
    num_rows = len(report.token_ids)
    _note_gap(num_rows, num_rows - num_begun, gpu, recent, decision)
    _deliver(report, batch.shares, offset, decision)
    return {}


def _take_row_by_row(report: StepReport, gpu: GpuRecord, recent: Recent, decision: Decision) -> dict[int, str]:
    """A report with rows of requests that have been stopped, or that are not at their next positions."""
    broken: dict[int, str] = {}
    taken: list[int] = []
    records: list[RequestRecord] = []
    num_begun = 0
    row_s = report.duration_s / len(report.counters)
    rows = zip(report.counters, report.positions, report.token_ids, strict=True)
    for row, (counter, position, token_id) in enumerate(rows):
        record = gpu.working_set.get(counter)
        if record is None:
            continue
        if position != record.num_generated or position >= record.max_tokens:
            broken.setdefault(counter, f"token {position}")
            continue
        if position == record.num_generated_at_start:
            num_begun += 1
            _note_begin(record, recent, decision)
        gpu.num_pages_ahead -= gpu.pages_ahead_of(record)
        record.generated_ids.append(token_id)
        gpu.num_pages_ahead += gpu.pages_ahead_of(record)
        record.gpu_s += row_s
        taken.append(row)
        records.append(record)
    _note_gap(len(taken), len(taken) - num_begun, gpu, recent, decision)
    positions = tuple([report.positions[row] for row in taken])
    _deliver(report, shares_of(taken, records, positions), 0, decision)
    return broken


def _note_begin(record: RequestRecord, recent: Recent, decision: Decision) -> None:
    """A request in no batch is about to get its first token here."""
    if not record.num_generated_at_start:
        recent.first_token.observe(decision.now_ns - record.admitted_ns)


def _note_gap(num_taken: int, num_continued: int, gpu: GpuRecord, recent: Recent, decision: Decision) -> None:
    """A token that is not its request's first here comes as long after the one before as the GPU's reports do."""
    if num_continued:
        recent.inter_token.observe(decision.now_ns - gpu.token_ns, num_continued)
    gpu.num_tokens += num_taken
    gpu.token_ns = decision.now_ns


def _deliver(report: StepReport, shares: Iterable[Share], offset: int, decision: Decision) -> None:
    for share in shares:
        logprobs = share.pick(report.logprobs) if report.logprobs else ()
        decision.deliveries[share.frontend_id] = Deliveries(
            share.handles,
            share.positions,
            share.pick(report.token_ids),
            logprobs if any(logprobs) else (),
            offset=offset,
        )
