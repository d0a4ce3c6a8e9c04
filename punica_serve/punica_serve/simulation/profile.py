"""Performance profiles: how long steps take on a device, from a YAML file.

Profiles of an A100 and an H200 come with the package; `punica-serve profile` measures others.
"""

from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Self

import yaml
from pydantic import Field, model_validator

from punica_serve.config.fields import ConfigModel, Name, NonNegative, NonNegativeInt, PositiveInt
from punica_serve.config.yaml_file import read_yaml, validated
from punica_serve.errors import ConfigError

Milliseconds = NonNegative
_Numbers = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]


def _check_ascending(name: str, numbers: tuple[int, ...]) -> None:
    if any(first >= second for first, second in pairwise(numbers)):
        raise ValueError(f"`{name}` must ascend")


def _check_times(numbers: tuple[int, ...], ms: tuple[float, ...], name: str) -> None:
    """Times must not fall, because they are extrapolated beyond the last number and could become negative."""
    if len(ms) != len(numbers):
        raise ValueError(f"`ms` must be as long as `{name}`")
    if any(first > second for first, second in pairwise(ms)):
        raise ValueError(f"`ms` must not fall while `{name}` rises")


class PrefillTimes(ConfigModel):
    """Steps of one prefill alone: milliseconds for each number of tokens."""

    tokens: _Numbers
    ms: tuple[Milliseconds, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_ascending("tokens", self.tokens)
        _check_times(self.tokens, self.ms, "tokens")
        return self


class DecodeTimes(ConfigModel):
    """Steps of decodes alone, without LoRA: a line of milliseconds for each batch size, one for each context."""

    batch: _Numbers
    #: Tokens of each request, on average.
    context: _Numbers
    ms: tuple[tuple[Milliseconds, ...], ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_ascending("batch", self.batch)
        _check_ascending("context", self.context)
        if len(self.ms) != len(self.batch) or any(len(line) != len(self.context) for line in self.ms):
            raise ValueError("`ms` must have a line for each of `batch`, with a number for each of `context`")
        for line in self.ms:
            _check_times(self.context, line, "context")
        for column in zip(*self.ms, strict=True):
            _check_times(self.batch, column, "batch")
        return self


class LoraTimes(ConfigModel):
    """Milliseconds that so many distinct adapters add to a step."""

    adapters: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] = (0,)
    ms: tuple[Milliseconds, ...] = (0.0,)

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_ascending("adapters", self.adapters)
        _check_times(self.adapters, self.ms, "adapters")
        return self


class AdapterLoad(ConfigModel):
    """The copy of an adapter from host memory to the device, which overlaps with steps."""

    latency_ms: Milliseconds = 0.0
    gb_per_s: Annotated[float, Field(strict=True, gt=0)]

    def copy_s(self, num_bytes: int) -> float:
        """Seconds that a copy of so many bytes takes."""
        return self.latency_ms / 1e3 + num_bytes / (self.gb_per_s * 1e9)


class PerformanceProfile(ConfigModel):
    """One model on one device."""

    #: The device and the model.
    name: Name
    #: The origin of the numbers.
    source: Name
    prefill: PrefillTimes
    decode: DecodeTimes
    lora: LoraTimes = LoraTimes()
    adapter_load: AdapterLoad
    #: Time of every step besides the device's work.
    step_overhead_ms: Milliseconds = 0.0


def shipped_profiles() -> tuple[str, ...]:
    """The names of the profiles that come with the package."""
    folder = files("punica_serve.simulation") / "profiles"
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def load_profile(name: str, folder: Path | None = None) -> PerformanceProfile:
    """A shipped profile by its name, or a file, relative to ``folder``. Raises ConfigError."""
    if name in shipped_profiles():
        path = Path(str(files("punica_serve.simulation"))) / "profiles" / f"{name}.yaml"
    elif name.endswith((".yaml", ".yml")):
        path = (folder or Path.cwd()) / Path(name).expanduser()
    else:
        raise ConfigError(
            f"there is no performance profile {name!r}; give one of {', '.join(shipped_profiles())}, or a YAML file",
            param="simulation.profile",
        )
    document = read_yaml(path, what="performance profile", example_key="decode")
    return validated(PerformanceProfile, document, source=str(path), folder=path.resolve().parent)


def write_profile(profile: PerformanceProfile, path: Path) -> None:
    """Writes a profile that ``load_profile`` can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(profile.model_dump(mode="json"), sort_keys=False, default_flow_style=None, width=120)
    path.write_text(text, encoding="utf-8")
