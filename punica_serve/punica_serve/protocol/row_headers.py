"""Delta-encoded row headers: a report names its rows, by assignment and position, only when they change.

From step to step most GPUs run the same rows, each at its next position. So a report either has full row headers, or
says in ``num_repeats`` how many steps ago they were sent.
"""

from msgspec.structs import replace

from punica_serve.protocol.runner import StepReport


class RowHeaderEncoder:
    """The row headers of one GPU that were sent last. A new link needs a new encoder, or another epoch."""

    def __init__(self) -> None:
        self._epoch = -1
        self._assignments: tuple[int, ...] = ()
        #: Positions of the next report, if it repeats the rows.
        self._positions: tuple[int, ...] = ()
        self._num_repeats = 0

    def encode(self, report: StepReport) -> StepReport:
        """The report to send for one with full row headers: without them if it repeats the rows sent last."""
        if not report.token_ids:
            return report
        rows = (report.epoch, report.assignments, report.positions)
        is_repeat = rows == (self._epoch, self._assignments, self._positions)
        self._epoch, self._assignments = report.epoch, report.assignments
        self._positions = tuple([position + 1 for position in report.positions])
        self._num_repeats = self._num_repeats + 1 if is_repeat else 0
        return replace(report, assignments=(), positions=(), num_repeats=self._num_repeats) if is_repeat else report


def with_row_headers(report: StepReport, newest_full: StepReport | None) -> StepReport | None:
    """The report with full row headers, from the newest report that had them. None if the two don't match."""
    if not report.num_repeats:
        return report
    if newest_full is None or len(newest_full.assignments) != len(report.token_ids):
        return None
    positions = tuple([position + report.num_repeats for position in newest_full.positions])
    return replace(report, assignments=newest_full.assignments, positions=positions, num_repeats=0)
