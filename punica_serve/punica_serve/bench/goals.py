"""Goals beside the figures that they are goals for."""

from collections.abc import Sequence
from dataclasses import dataclass

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
    """A figure, and what it should be."""

    figure: str
    #: None: not measured in this run.
    measured: float | None
    bound: float
    #: Whether the figure should be at least the bound, or at most.
    at_least: bool

    @property
    def is_met(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound


def goals_table(goals: Sequence[Goal], title: str = "Goals (one H200, Llama-2-7B shape)") -> TableData:
    """The goals whose figures were measured."""
    rows = [
        (
            goal.figure,
            goal.measured,
            f"{'>=' if goal.at_least else '<='} {goal.bound:,g}",
            "yes" if goal.is_met else "no",
        )
        for goal in goals
        if goal.measured is not None
    ]
    return TableData("goals", title, _COLUMNS, rows)
