"""Chooses, by measured times, the size from which on FlashInfer serves prompts."""

from collections.abc import Iterable
from typing import NamedTuple

from punica_serve.engine.cuda.batch_bucket import padded_rows
from punica_serve.performance.attention_table import AttentionTable, AttentionTime

#: FlashInfer is taken where our kernel needs this many times its time, or more.
_MIN_GAIN = 1.02


class Layers(NamedTuple):
    """The numbers of a model on which the choice depends."""

    heads: int
    kv_heads: int
    head_dim: int


class Choice(NamedTuple):
    """The fewest prefill rows of a bucket that FlashInfer serves; None, with the reason, if it serves none."""

    first_rows: int | None
    reason: str = ""


def choose(table: AttentionTable, layers: Layers, num_prefills: int) -> Choice:
    """FlashInfer serves from the bucket on from which it is the faster one in all measured ones.

    Layers are compared with those of equal heads in the nearest measured group, and steps of up to ``num_prefills``
    prompts with those of the most that were measured, of no more.
    """
    times = [time for time in table.times if time.head_dim == layers.head_dim]
    if not times:
        return Choice(None, f"no times of heads of {layers.head_dim} were measured")
    most = max((time.prompts for time in times if time.prompts <= num_prefills), default=0)
    if most == 0 or (most == 1 and num_prefills > 1):
        what = "several prompts" if num_prefills > 1 else "one prompt"
        return Choice(None, f"no times of {what} a step were measured (`engine.max_prefills`: {num_prefills})")
    times = [time for time in times if time.prompts == most]
    group = layers.heads // layers.kv_heads
    nearest = min((time.group for time in times), key=lambda measured: abs(measured - group))
    first = _first_gain(time for time in times if time.group == nearest)
    return Choice(first, "" if first else "FlashInfer is nowhere faster")


def _first_gain(times: Iterable[AttentionTime]) -> int | None:
    """All contexts of a bucket count together, since one graph serves them."""
    ours: dict[int, float] = {}
    theirs: dict[int, float] = {}
    for time in times:
        rows = padded_rows(time.new_tokens)
        ours[rows] = ours.get(rows, 0.0) + time.triton_us
        theirs[rows] = theirs.get(rows, 0.0) + time.flashinfer_us
    first = None
    for rows in sorted(ours, reverse=True):
        if ours[rows] < _MIN_GAIN * theirs[rows]:
            break
        first = rows
    return first
