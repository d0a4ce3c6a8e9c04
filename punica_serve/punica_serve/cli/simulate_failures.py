"""Prints why requests of `punica-serve simulate` failed, and which claims and goals hold."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import typer

from punica_serve.numbers import counted

if TYPE_CHECKING:
    from rich.console import Console

    from punica_scheduler.simulator.summary import Check

_EXIT_FAILED = 1
#: Reasons shown for each run.
_MAX_REASONS = 5


def print_failures(run: str, failures: Mapping[str, int], console: "Console") -> None:
    """Prints ``failures``, requests by reason, most frequent first.

    Reasons that differ only in their numbers are counted together under one of them.
    """
    by_kind: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for reason, count in failures.items():
        kind = re.sub(r"\d+", "0", reason)
        by_kind[kind] += count
        examples.setdefault(kind, reason)
    by_count = by_kind.most_common()
    for kind, count in by_count[:_MAX_REASONS]:
        line = f"{run}: {counted(count, 'request')} failed: {examples[kind]}"
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    if more := by_count[_MAX_REASONS:]:
        num_requests = sum(count for _, count in more)
        line = f"{run}: {counted(num_requests, 'request')} failed for {counted(len(more), 'other reason')}"
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def print_checks(checks: "Iterable[Check]", console: "Console") -> None:
    """A line for each."""
    for check in checks:
        verdict = "pass" if check.holds else "FAIL"
        console.print(f"{verdict}  {check.claim}: {check.seen}", soft_wrap=True, highlight=False)


def exit_if_failed(any_request_failed: bool, must_hold: "Iterable[Check]" = ()) -> None:
    """Raises typer.Exit(1) if a request failed, or one of the checks that must hold does not."""
    if any_request_failed or not all(check.holds for check in must_hold):
        raise typer.Exit(_EXIT_FAILED)
