"""Measured times of FlashInfer's attention and ours, by launch shape: what `engine.attention: auto` decides by.

A table holds for one kind of GPU. Some come with the package; `punica-serve bench prompts --table FILE` measures more.
Only the ratios of times count, so rows of as many prompts may hold times of whole steps or of attention alone.
"""

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field

from punica_serve.config.fields import ConfigModel, Int32, Name
from punica_serve.config.yaml_file import read_yaml, validated

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


def load_table(path: Path) -> AttentionTable:
    """Raises ConfigError."""
    document = read_yaml(path, what="`engine.attention_times`: file", example_key="times")
    return validated(AttentionTable, document, source=str(path), folder=path.resolve().parent)


def shipped_table(device_name: str) -> AttentionTable | None:
    """The table that comes with the package for this GPU, by its driver's name; None if there is none."""
    return next((table for table in shipped_tables() if table.device == device_name), None)


def shipped_tables() -> tuple[AttentionTable, ...]:
    """All tables that come with the package."""
    folder = Path(str(files("punica_serve.performance"))) / "attention_tables"
    return tuple(load_table(path) for path in sorted(folder.glob("*.yaml")))


def write_table(table: AttentionTable, path: Path) -> None:
    """Writes a table that ``load_table`` can read. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(table.model_dump(mode="json"), sort_keys=False, default_flow_style=None, width=160)
    path.write_text(text, encoding="utf-8")
