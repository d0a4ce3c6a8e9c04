"""From what a worker reports to what frontends are told: the hottest loop of the cluster."""

from itertools import repeat

from punica_scheduler.decision import Decision
from punica_scheduler.gpu import GpuRecord
from punica_serve.protocol import StepReport


def take_tokens(report: StepReport, gpu: GpuRecord, decision: Decision) -> dict[int, int]:
    """Takes and delivers each token that is its request's next: no gap, no repeat, none too many.

    Returns the first position that broke a stream, by counter of assignment. Late tokens of assignments that have been
    stopped are dropped.
    """
    broken: dict[int, int] = {}
    working_set = gpu.working_set
    num_taken = 0
    # A report has tokens of few frontends: their columns are looked up when the frontend changes.
    frontend_id = None
    rows = zip(report.counters, report.positions, report.token_ids, report.logprobs or repeat(None), strict=False)
    for counter, position, token_id, logprobs in rows:
        record = working_set.get(counter)
        if record is None:
            continue
        generated_ids = record.generated_ids
        if position != len(generated_ids):
            broken.setdefault(counter, position)
            continue
        if position >= record.grows_at:
            if position >= record.max_tokens:
                broken.setdefault(counter, position)
                continue
            gpu.grow(record)
        generated_ids.append(token_id)
        if record.frontend_id is not frontend_id:
            frontend_id = record.frontend_id
            columns = decision.columns_of(frontend_id)
            handles, positions, token_ids = columns.handles, columns.positions, columns.token_ids
        handles.append(record.handle)
        positions.append(position)
        token_ids.append(token_id)
        if logprobs is not None:
            columns.add_logprobs(logprobs)
        num_taken += 1
    gpu.num_tokens += num_taken
    return broken
