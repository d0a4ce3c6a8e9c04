"""Which requests the rows of a GPU's reports are: named when they change, and not at every step."""

from msgspec.structs import replace

from punica_serve.protocol.runner import StepReport


class RowNames:
    """What a GPU's reports have named last, where they leave for the scheduler."""

    def __init__(self) -> None:
        #: Names end with the link: there is another epoch for the next.
        self._epoch = -1
        self._counters: tuple[int, ...] = ()
        #: Of the next report, if it repeats the rows.
        self._positions: tuple[int, ...] = ()
        self._num_repeats = 0

    def shorten(self, report: StepReport) -> StepReport:
        """A report with all its names, without them where its rows are those of the one with tokens before it."""
        if not report.token_ids:
            return report
        rows = (report.epoch, report.counters, report.positions)
        is_repeat = rows == (self._epoch, self._counters, self._positions)
        self._epoch, self._counters = report.epoch, report.counters
        self._positions = tuple([position + 1 for position in report.positions])
        self._num_repeats = self._num_repeats + 1 if is_repeat else 0
        return replace(report, counters=(), positions=(), num_repeats=self._num_repeats) if is_repeat else report


def with_names(report: StepReport, naming: StepReport | None) -> StepReport | None:
    """The report with all its names, ``naming`` being the newest that had them; None if they don't belong together."""
    if not report.num_repeats:
        return report
    if naming is None or len(naming.counters) != len(report.token_ids):
        return None
    positions = tuple([position + report.num_repeats for position in naming.positions])
    return replace(report, counters=naming.counters, positions=positions, num_repeats=0)
