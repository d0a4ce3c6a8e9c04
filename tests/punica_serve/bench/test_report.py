"""The files that every benchmark writes."""

import json
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from punica_serve.bench.report import Column, Report, TableData, leave, machine

COLUMNS = (Column("case", "case"), Column("batch", "batch"), Column("us", "time, µs", ".1f"))


def _draw(figure: Figure) -> None:
    figure.subplots().plot([1, 2], [3, 4])


def _report() -> Report:
    table = TableData("pair", "one pair", COLUMNS, [("distinct", 1, 2.948), ("peer", 32, None)], notes=("a note",))
    return Report("kernels", {"device": "x"}, {"rank": 16}, [table], {"": _draw, "roofline": _draw}, {"ratio": 0.98765})


def test_it_prints_a_table_and_writes_json_and_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = leave(_report(), tmp_path / "out", Console(width=100))
    assert [path.name for path in paths] == ["kernels.json", "kernels.png", "kernels-roofline.png"]
    document = json.loads(paths[0].read_text())
    assert document["tables"]["pair"][0] == {"case": "distinct", "batch": 1, "us": 2.948}
    assert document["tables"]["pair"][1]["us"] is None
    assert document["settings"] == {"rank": 16} and document["facts"] == {"ratio": 0.98765}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths[1:])
    printed = capsys.readouterr().out
    for text in ("time, µs", "2.9", "a note", "ratio: 0.988", "kernels-roofline.png"):
        assert text in printed
    assert any(line.split("│")[3].strip() == "-" for line in printed.splitlines() if "peer" in line)


def test_a_file_that_cannot_be_written_is_found_after_the_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kernels.json").mkdir()
    with pytest.raises(IsADirectoryError):
        leave(_report(), tmp_path, Console(width=100))
    assert "time, µs" in capsys.readouterr().out


def test_results_are_told_where_nothing_can_draw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert leave(_report(), tmp_path, Console(width=200)) == [tmp_path / "kernels.json"]
    printed = capsys.readouterr().out
    assert "install the `bench` extra" in printed and "wrote" in printed and "kernels.json" in printed


def test_a_row_that_does_not_fit_its_columns_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        TableData("t", "t", COLUMNS, [("distinct", 1)]).records  # noqa: B018


def test_the_machine_says_what_it_ran() -> None:
    facts = machine("cpu")
    assert facts["torch"] and facts["device"] and "triton" in facts
