"""Fits what LoRA adds to decode steps: this project's model, and the two of CaraServe (section 5.1, figure 9).

A pure function of samples, which `punica-serve profile` measures and keeps in a file.
"""

import csv
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from punica_serve.errors import ConfigError
from punica_serve.learned_types import learned
from punica_serve.performance.lora_load import LoraLoad
from punica_serve.performance.lora_times import HIGHEST_RANK_ROWS, MAX_FUSED_ROWS, DistinctLora
from punica_serve.performance.step_time import lora_seconds

#: Rank pages at which our model may bend.
_KNOTS = (0, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)

SampleKind = Literal["equal", "shared", "mixed", "held_out"]

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LoraSample:
    """Decode steps of one batch, all of whose rows have adapters."""

    #: "equal": adapters of one rank, a different one for each row. "shared": one adapter for all rows. "mixed": any.
    #: "held_out": any, not fitted.
    kind: SampleKind
    num_rows: int
    num_adapters: int
    #: Over the rows.
    sum_ranks: int
    max_rank: int
    #: Rank pages of the different adapters.
    num_pages: int
    #: A step of the same batch without LoRA, and the step.
    base_ms: float
    step_ms: float

    @property
    def lora_ms(self) -> float:
        return self.step_ms - self.base_ms


@dataclass(frozen=True, slots=True)
class LineFit:
    """A straight line through LoRA's milliseconds."""

    slope_ms: float
    base_ms: float
    r_squared: float


@dataclass(frozen=True, slots=True)
class LoraFit:
    #: This project's model.
    lora: DistinctLora
    r_squared: float
    #: 95 % of the held-out batches' steps are predicted better, relative to the measured; None without any.
    held_out_p95_error: float | None
    #: Over rows times the highest rank: batches as BGMV pads them. Like the next, of up to ``MAX_FUSED_ROWS`` rows:
    #: a line can't know that larger ones run otherwise.
    padded: LineFit
    #: Over the sum of ranks: batches all of whose adapters differ.
    unpadded: LineFit


def fit_lora(samples: Sequence[LoraSample]) -> LoraFit:
    """The three models. ``samples`` has at least two batches of kind "equal" whose ranks or sizes differ."""
    fitted = [sample for sample in samples if sample.kind != "held_out"]
    held_out = [sample for sample in samples if sample.kind == "held_out"]
    lora = _fit_distinct(fitted)
    equal = [sample for sample in fitted if sample.kind == "equal" and sample.num_rows <= MAX_FUSED_ROWS]
    all_differ = [sample for sample in fitted if sample.num_adapters == sample.num_rows <= MAX_FUSED_ROWS]
    return LoraFit(
        lora=lora,
        r_squared=_r_squared(_lora_ms(fitted), predicted_ms(lora, fitted)),
        held_out_p95_error=_p95_error(lora, held_out) if held_out else None,
        padded=_line([sample.num_rows * sample.max_rank for sample in equal], equal),
        unpadded=_line([sample.sum_ranks for sample in all_differ], all_differ),
    )


def predicted_ms(lora: DistinctLora, samples: Sequence[LoraSample]) -> _Floats:
    """LoRA's milliseconds by our model."""
    seconds = lora_seconds(lora)
    loads = [LoraLoad(sample.num_rows, sample.sum_ranks, sample.max_rank, sample.num_pages) for sample in samples]
    return 1e3 * np.array([seconds(load) for load in loads])


def _fit_distinct(samples: Sequence[LoraSample]) -> DistinctLora:
    """Least squares over a line with bends in pages, none of whose pieces falls, and the terms of ``DistinctLora``.

    Errors count relative to the step, so that small batches, whose steps are the most frequent, count as much as large
    ones.
    """
    pages = np.array([sample.num_pages for sample in samples], dtype=np.float64)
    largest = int(pages.max())
    knots = [knot for knot in _KNOTS if knot < largest] + [largest]
    pieces = [np.clip(pages, first, last) - first for first, last in pairwise(knots)]
    terms = np.array([_terms(sample) for sample in samples], dtype=np.float64)
    weights = 1 / np.array([sample.step_ms for sample in samples])
    columns = np.concatenate([np.stack([np.ones(len(samples)), *pieces], axis=1), terms], axis=1)
    constant, *slopes = _non_negative(columns * weights[:, None], _lora_ms(samples) * weights).tolist()
    row_ms, rank_ms, highest_rank_ms, large_batch_ms = slopes[len(pieces) :]
    ms = constant + np.cumsum(
        [0.0, *(slope * (last - first) for slope, (first, last) in zip(slopes, pairwise(knots), strict=False))]
    )
    return DistinctLora(
        kind="distinct",
        pages=tuple(knots),
        ms=tuple(round(value, 5) for value in ms.tolist()),
        row_ms=round(row_ms, 6),
        rank_ms=round(rank_ms, 8),
        highest_rank_ms=round(highest_rank_ms, 7),
        large_batch_ms=round(large_batch_ms, 5),
    )


def _terms(sample: LoraSample) -> tuple[float, float, float, float]:
    """The numbers of a batch that ``DistinctLora``'s terms multiply, in their order."""
    rows_of_highest = min(sample.num_rows, HIGHEST_RANK_ROWS) / HIGHEST_RANK_ROWS
    is_large = sample.num_rows > MAX_FUSED_ROWS
    return sample.num_rows, sample.sum_ranks, sample.max_rank * rows_of_highest, float(is_large)


def _non_negative(columns: _Floats, values: _Floats) -> _Floats:
    """Least squares whose coefficients are not negative: the most negative one leaves, until none is."""
    solution = np.zeros(columns.shape[1])
    active = list(range(columns.shape[1]))
    while active:
        found = np.linalg.lstsq(columns[:, active], values, rcond=None)[0]
        if found.min() >= 0.0:
            solution[active] = found
            break
        del active[int(found.argmin())]
    return solution


def _line(numbers: Sequence[int], samples: Sequence[LoraSample]) -> LineFit:
    x, y = np.array(numbers, dtype=np.float64), _lora_ms(samples)
    slope, base = np.polyfit(x, y, 1).tolist()
    return LineFit(slope, base, _r_squared(y, slope * x + base))


def _r_squared(measured: _Floats, predicted: _Floats) -> float:
    spread = float(((measured - measured.mean()) ** 2).sum())
    return 1.0 - float(((measured - predicted) ** 2).sum()) / spread if spread else 1.0


def _p95_error(lora: DistinctLora, samples: Sequence[LoraSample]) -> float:
    steps = np.array([sample.step_ms for sample in samples])
    errors = np.abs(predicted_ms(lora, samples) - _lora_ms(samples)) / steps
    return float(np.percentile(errors, 95))


def _lora_ms(samples: Sequence[LoraSample]) -> _Floats:
    return np.array([sample.lora_ms for sample in samples])


# ------------------------------------------------------------ the file


def samples_file(profile: Path) -> Path:
    """Where the samples of a profile lie: beside it."""
    return profile.with_suffix(".samples.csv")


def write_samples(samples: Sequence[LoraSample], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(LoraSample)])
        writer.writerows(map(astuple, samples))


def read_samples(path: Path) -> list[LoraSample]:
    """Raises ConfigError for a file that ``write_samples`` has not written."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return msgspec.convert(list(csv.DictReader(file, strict=True)), learned(list[LoraSample]), strict=False)
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigError(f"{path} has no samples of `punica-serve profile`: {error}", param="profile") from error
