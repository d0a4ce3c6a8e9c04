"""Files of the Azure Functions trace: one that is right, and many that are not."""

import os
from pathlib import Path

import numpy as np
import pytest

from punica_serve.errors import ConfigError
from punica_serve.simulation.azure_trace import read_trace, shares_of

HEADING = ",".join(["HashOwner", "HashApp", "HashFunction", "Trigger", *map(str, range(1, 1441))])


def row(*counts: int | str) -> str:
    return ",".join(["o", "a", "f", "http", *map(str, counts), *["0"] * (1440 - len(counts))])


def written(folder: Path, *lines: str) -> Path:
    file = folder / "day.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_counts_of_the_minutes_that_a_run_takes(tmp_path: Path) -> None:
    file = written(tmp_path, HEADING, row(1, 2, 3), row(0, 5, 0), row(7, 0, 1))
    assert read_trace(file, 60).tolist() == [[1], [0], [7]]
    assert read_trace(file, 60.5).tolist() == [[1, 2], [0, 5], [7, 0]]
    assert read_trace(file, 0.1).tolist() == [[1], [0], [7]]


def test_functions_are_dealt_to_adapters_in_turn() -> None:
    shares = shares_of(np.array([[1, 2], [0, 6], [3, 0]]), 2)
    assert shares == [[1.0, 0.0], [0.25, 0.75]]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], "its first line must be HashOwner,HashApp,HashFunction,Trigger,1,2,...,1440"),
        (["HashOwner,HashApp,HashFunction,Trigger", row(1)], "its first line must be"),
        ([HEADING.replace("HashApp", "App"), row(1)], "its first line must be"),
        ([HEADING], "no function is invoked in minute 1"),
        ([HEADING, row(0, 1)], "no function is invoked in minute 1"),
        ([HEADING, row(1), "o,a,f,http,1"], "line 3 has 5 columns instead of 1444"),
        ([HEADING, row(1) + ",1"], "line 2 has 1445 columns instead of 1444"),
        ([HEADING, row(1), row("-2")], "line 3, minute 1: '-2' is not a number of invocations"),
        ([HEADING, row("1.5")], "line 2, minute 1: '1.5' is not a number"),
        ([HEADING, row("")], "line 2, minute 1: '' is not a number"),
        ([HEADING, row("9" * 40)], "line 2, minute 1: '999"),
        ([HEADING, row("²")], "line 2, minute 1: '²' is not a number"),
        ([HEADING, row('"1'), row(1)], "line 3: unexpected end of data"),
    ],
)
def test_a_file_that_is_wrong_is_said_with_its_line(lines: list[str], reason: str, tmp_path: Path) -> None:
    file = written(tmp_path, *lines)
    with pytest.raises(ConfigError) as raised:
        read_trace(file, 60)
    assert raised.value.message.startswith(f"`--trace` {file} is not a file of invocations")
    assert reason in raised.value.message and len(raised.value.message.splitlines()) == 1


def test_a_file_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_trace(tmp_path / "none.csv", 60)
    with pytest.raises(ConfigError, match="Is a directory"):
        read_trace(tmp_path, 60)
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(ConfigError, match="it is not a regular file"):
        read_trace(tmp_path / "pipe.csv", 60)
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="it is not text in UTF-8"):
        read_trace(tmp_path / "bytes.csv", 60)
