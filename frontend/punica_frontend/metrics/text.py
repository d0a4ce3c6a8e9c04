"""Prometheus' text format, version 0.0.4.

Our own code, because prometheus_client takes many times as long for a line, and the page of a thousand GPUs has ten
thousand lines. The tests read it with that package's parser.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NewType

from punica_frontend.metrics.distribution import Distribution

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: The labels of one sample, escaped: `name="value",...`.
Labels = NewType("Labels", str)
NO_LABELS = Labels("")

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric's name and meaning. ``is_own``: each frontend reports its own value; otherwise all report the same."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    is_own: bool = True


def labelled(**labels: str) -> Labels:
    return Labels(",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items()))


def joined(*labels: Labels) -> Labels:
    return Labels(",".join(filter(None, labels)))


def family(metric: Metric, samples: Iterable[tuple[Labels, float | Distribution]]) -> Iterator[str]:
    """Yields the lines of a metric, a sample for each set of labels."""
    name = metric.name
    yield f"# HELP {name} {metric.help}\n# TYPE {name} {metric.kind}\n"
    for labels, value in samples:
        if isinstance(value, Distribution):
            yield from _histogram(name, labels, value)
        else:
            yield f"{name}{{{labels}}} {+value!r}\n" if labels else f"{name} {+value!r}\n"


def _histogram(name: str, labels: Labels, values: Distribution) -> Iterator[str]:
    """Prometheus' buckets are cumulative."""
    before, own = (f"{labels},", f"{{{labels}}}") if labels else ("", "")
    total = 0
    for bound, total in zip((*values.bounds, "+Inf"), accumulate(values.counts), strict=True):
        yield f'{name}_bucket{{{before}le="{bound}"}} {total}\n'
    yield f"{name}_sum{own} {values.sum!r}\n{name}_count{own} {total}\n"
