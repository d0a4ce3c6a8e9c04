"""Reads a day of the Azure Functions trace of 2019: how often each function was invoked in each minute.

A file `invocations_per_function_md.anon.dNN.csv` has the columns HashOwner, HashApp, HashFunction, Trigger, and then
one for each minute of the day, named 1 to 1440.
"""

import csv
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

import numpy as np
import numpy.typing as npt

from punica_serve.errors import ConfigError
from punica_serve.errors.plain_files import open_plain
from punica_serve.errors.reasons import reason_of
from punica_serve.numbers import is_count

_NAMES = ("HashOwner", "HashApp", "HashFunction", "Trigger")
_NUM_MINUTES = 1440
#: Sums over all functions fit 64 bits.
_MAX_DIGITS = 15
_HEADING = [*_NAMES, *map(str, range(1, _NUM_MINUTES + 1))]

#: The share of requests that each adapter gets, for one minute after the other.
Shares = Sequence[Sequence[float]]


def read_trace(file: Path, seconds: float) -> npt.NDArray[np.int64]:
    """Invocations in the first minutes, as many as ``seconds`` take: [functions, minutes].

    Raises ConfigError, naming the line, for a file in another format or without invocations in one of these minutes.
    """
    num_minutes = min(max(1, -int(-seconds // 60)), _NUM_MINUTES)
    try:
        with TextIOWrapper(open_plain(file), encoding="utf-8", newline="") as lines:
            reader = csv.reader(lines, strict=True)
            if next(reader, None) != _HEADING:
                raise _rejected(file, f"its first line must be {','.join(_NAMES)},1,2,...,{_NUM_MINUTES}")
            rows = [_counts(file, reader.line_num, row, num_minutes) for row in reader]
    except (OSError, UnicodeDecodeError) as error:
        raise _rejected(file, reason_of(error)) from error
    except csv.Error as error:
        raise _rejected(file, f"line {reader.line_num}: {error}") from error
    counts = np.array(rows, dtype=np.int64).reshape(-1, num_minutes)
    for minute in np.flatnonzero(counts.sum(axis=0) == 0):
        raise _rejected(file, f"no function is invoked in minute {minute + 1}; give a file with a whole day")
    return counts


def shares_of(counts: npt.NDArray[np.int64], num_adapters: int) -> Shares:
    """The share of each adapter in each minute, if functions are dealt to adapters in turn, in the file's order."""
    weights = np.stack([counts[adapter::num_adapters].sum(axis=0) for adapter in range(num_adapters)], axis=1)
    shares: list[list[float]] = (weights / weights.sum(axis=1, keepdims=True)).tolist()
    return shares


def _counts(file: Path, line: int, row: Sequence[str], num_minutes: int) -> list[int]:
    if len(row) != len(_HEADING):
        raise _rejected(file, f"line {line} has {len(row)} columns instead of {len(_HEADING)}")
    texts = row[len(_NAMES) : len(_NAMES) + num_minutes]
    for minute, text in enumerate(texts, 1):
        if not is_count(text, _MAX_DIGITS):
            raise _rejected(file, f"line {line}, minute {minute}: {text!r:.50} is not a number of invocations")
    return [int(text) for text in texts]


def _rejected(file: Path, reason: str) -> ConfigError:
    message = f"`--trace` {file} is not a file of invocations of the Azure Functions trace of 2019: {reason}"
    return ConfigError(message, param="trace")
