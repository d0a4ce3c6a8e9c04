"""Messages to and from the process that matches an adapter's regular expressions: one job, then lines of JSON."""

import msgspec

from punica_serve.adapters.base_modules import BaseModules
from punica_serve.adapters.matching import LoraTarget
from punica_serve.adapters.peft_config import PeftConfig


class PatternJob(msgspec.Struct, frozen=True):
    """A request to match a configuration against a base model."""

    config: PeftConfig
    base: BaseModules


class Matching(msgspec.Struct, frozen=True, tag=True):
    """Progress: the worker starts on this field."""

    field: str


class Matched(msgspec.Struct, frozen=True, tag=True):
    """The result of a successful job."""

    targets: tuple[LoraTarget, ...]
    warnings: tuple[str, ...]


class Rejected(msgspec.Struct, frozen=True, tag=True):
    """The result of a job whose adapter is refused."""

    message: str
    param: str | None


PatternAnswer = Matching | Matched | Rejected
