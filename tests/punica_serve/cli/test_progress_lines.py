"""Progress of commands whose output is no terminal."""

import io
import re
import time
from collections.abc import Callable

import pytest
from rich.console import Console

from punica_serve.cli import progress_lines
from punica_serve.cli.progress_lines import shown_progress
from waits import wait_for

Written = Callable[[], str]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Written:
    """All of stderr so far, to which lines come fast."""
    monkeypatch.setattr(progress_lines, "_INTERVAL_S", 0.01)
    parts: list[str] = []

    def read() -> str:
        parts.append(capsys.readouterr().err)
        return "".join(parts)

    return read


def test_a_line_tells_of_each_unfinished_task_until_the_end(written: Written) -> None:
    with shown_progress(Console(file=io.StringIO())) as progress:
        progress.advance(progress.add_task("linear", total=4))
        progress.add_task("sgmv", total=None)
        wait_for(lambda: re.search(r"linear: 1 of 4, \d+ s\nsgmv: 0, \d+ s\n", written()))
    length = len(written())
    time.sleep(0.05)
    assert len(written()) == length


def test_the_newest_task_is_told_once_all_are_finished(written: Written) -> None:
    with shown_progress(Console(file=io.StringIO())) as progress:
        for name in ("linear", "sgmv"):
            progress.advance(progress.add_task(name, total=1))
        wait_for(lambda: re.search(r"(sgmv: 1 of 1, \d+ s\n){2}", written()))


def test_a_terminal_has_its_bar_alone(written: Written) -> None:
    terminal = io.StringIO()
    with shown_progress(Console(file=terminal, force_terminal=True, width=80)) as progress:
        progress.add_task("linear", total=4)
        time.sleep(0.05)
    assert "linear" in terminal.getvalue() and not written()
