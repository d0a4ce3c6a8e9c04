"""Measured times of FlashInfer's attention and ours, by launch shape: what `engine.attention: auto` decides by.

A table holds for one kind of GPU. Some come with the package; `punica-serve bench prompts --table FILE` measures more.
Only the ratios of times count, so rows of as many prompts may hold times of whole steps or of attention alone.
"""

from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import yaml
from pydantic import Field

from punica_serve.config.fields import ConfigModel, Int32, Name
from punica_serve.config.yaml_file import read_yaml, validated
from punica_serve.engine.cuda.batch_bucket import padded_rows

#: FlashInfer is taken where our kernel needs this many times its time, or more.
_MIN_GAIN = 1.02

_Microseconds = Annotated[float, Field(gt=0)]


class AttentionTime(ConfigModel):
    """A step, or a layer of it, with rows of so many prompts and nothing else."""

    heads: Int32
    kv_heads: Int32
    head_dim: Int32
    prompts: Int32
    #: Rows of all prompts together.
    new_tokens: Int32
    #: Tokens that the last row of a prompt sees, itself included.
    context: Int32
    triton_us: _Microseconds
    flashinfer_us: _Microseconds

    @property
    def group(self) -> int:
        """Query heads that share one head of keys and values."""
        return self.heads // self.kv_heads


class AttentionTable(ConfigModel):
    """The times of one kind of GPU."""

    #: The version of this format.
    version: Literal[1]
    #: The GPU as its driver names it.
    device: Name
    #: The origin of the numbers.
    source: Name
    times: Annotated[tuple[AttentionTime, ...], Field(min_length=1)]


class Layers(NamedTuple):
    """What the choice depends on in a model."""

    heads: int
    kv_heads: int
    head_dim: int


class Choice(NamedTuple):
    """The fewest prefill rows of a bucket that FlashInfer serves; None, with the reason, if it serves none."""

    first_rows: int | None
    reason: str = ""


def load_table(path: Path) -> AttentionTable:
    """Raises ConfigError."""
    document = read_yaml(path, what="table of attention times", example_key="times")
    return validated(AttentionTable, document, source=str(path), folder=path.resolve().parent)


def shipped_table(device_name: str) -> AttentionTable | None:
    """The table that comes with the package for this GPU, by its driver's name; None if there is none."""
    return next((table for table in shipped_tables() if table.device == device_name), None)


def shipped_tables() -> tuple[AttentionTable, ...]:
    """All tables that come with the package."""
    folder = Path(str(files(__package__))) / "attention_tables"
    return tuple(load_table(path) for path in sorted(folder.glob("*.yaml")))


def write_table(table: AttentionTable, path: Path) -> None:
    """Writes a table that ``load_table`` can read. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(table.model_dump(mode="json"), sort_keys=False, default_flow_style=None, width=160)
    path.write_text(text, encoding="utf-8")


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
