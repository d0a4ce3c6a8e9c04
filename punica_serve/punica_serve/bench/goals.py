"""Tables of goals and measured results."""

from collections.abc import Sequence
from dataclasses import dataclass

from punica_serve.bench.reference_figures import Bound
from punica_serve.bench.report import Column, TableData

#: The model shape that the goals are for.
GOAL_SHAPE = "llama-2-7b"

_COLUMNS = (
    Column("figure", "figure"),
    Column("measured", "measured", ",.3g"),
    Column("goal", "goal"),
    Column("met", "met"),
)


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal, and the result that a run measured for it."""

    bound: Bound
    #: None if not measured in this run.
    measured: float | None
    #: Appended to the name, where several loads have the same goal.
    load: str = ""

    @property
    def is_met(self) -> bool | None:
        if self.measured is None:
            return None
        if self.bound.at_least is not None:
            return self.measured >= self.bound.at_least
        return self.bound.at_most is not None and self.measured <= self.bound.at_most

    @property
    def row(self) -> tuple[str, float | None, str, str]:
        """Name, measured result, goal, and whether it is met."""
        bound = self.bound
        goal = f">= {bound.at_least:,g}" if bound.at_least is not None else f"<= {bound.at_most:,g}"
        figure = f"{bound.figure}, {self.load}" if self.load else bound.figure
        return figure, self.measured, goal, "yes" if self.is_met else "no"


def goals_table(goals: Sequence[Goal], title: str = "Goals (one H200, Llama-2-7B shape)") -> TableData:
    """A table of the goals that have a measured result."""
    return TableData("goals", title, _COLUMNS, [goal.row for goal in goals if goal.measured is not None])
