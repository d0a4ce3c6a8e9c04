"""Performance profiles: how long steps take on a device, from a YAML file.

Some profiles come with the package; `punica-serve profile` measures others.
"""

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import Field, model_validator

from punica_serve.base_model.model_config import ModelConfig, ModelDtype
from punica_serve.config.fields import ConfigModel, Name, NonNegative, PositiveInt
from punica_serve.config.yaml_file import read_yaml, validated
from punica_serve.errors import ConfigError
from punica_serve.performance.ascending import check_ascending, check_times
from punica_serve.performance.lora_times import DistinctLora, LoraTimes
from punica_serve.protocol.runner import MAX_RANKS

Milliseconds = NonNegative
_Numbers = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]


class PrefillTimes(ConfigModel):
    """Steps of one prefill alone: milliseconds for each number of tokens."""

    tokens: _Numbers
    ms: tuple[Milliseconds, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_ascending("tokens", self.tokens)
        check_times(self.tokens, self.ms, "tokens")
        return self


class DecodeTimes(ConfigModel):
    """Steps of decodes alone, without LoRA: a line of milliseconds for each batch size, one for each context."""

    batch: _Numbers
    #: Tokens of each request, on average.
    context: _Numbers
    ms: tuple[tuple[Milliseconds, ...], ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_ascending("batch", self.batch)
        check_ascending("context", self.context)
        if len(self.ms) != len(self.batch) or any(len(line) != len(self.context) for line in self.ms):
            raise ValueError("`ms` must have a line for each of `batch`, with a number for each of `context`")
        for line in self.ms:
            check_times(self.context, line, "context")
        for column in zip(*self.ms, strict=True):
            check_times(self.batch, column, "batch")
        return self


class AdapterLoad(ConfigModel):
    """The copy of an adapter from host memory to the device, which overlaps with steps."""

    latency_ms: Milliseconds = 0.0
    gb_per_s: Annotated[float, Field(strict=True, gt=0)]

    def copy_s(self, num_bytes: int) -> float:
        """Seconds that a copy of so many bytes takes."""
        return self.latency_ms / 1e3 + num_bytes / (self.gb_per_s * 1e9)


class ModelShape(ConfigModel):
    """The sizes of a model that the time of its steps depends on, in Hugging Face's names."""

    num_hidden_layers: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    vocab_size: PositiveInt

    @classmethod
    def of(cls, config: ModelConfig) -> Self:
        return cls(**{name: getattr(config, name) for name in cls.model_fields})

    def difference(self, other: Self) -> str | None:
        """The first size that differs, in words; None if the shapes are equal."""
        for name in type(self).model_fields:
            if (own := getattr(self, name)) != (others := getattr(other, name)):
                return f"{name} {own}, not {others}"
        return None


class PerformanceProfile(ConfigModel):
    """One model on one kind of device."""

    #: The version of this format.
    version: Literal[2]
    #: The device and the model, for people.
    name: Name
    #: The origin of the numbers.
    source: Name
    #: The device as its driver names it, or "cpu".
    device: Name
    model: ModelShape
    #: The data types of weights and KvCache for which the numbers hold.
    dtypes: Annotated[tuple[ModelDtype, ...], Field(min_length=1)]
    #: Devices of a group that serves one copy of the model; 1: there is no group.
    group_size: Annotated[PositiveInt, Field(le=MAX_RANKS)]
    #: Prefills beside the decodes of a step, at the highest.
    max_prefills: Literal[1]
    #: "beside": prefills run in steps with decodes, as this project's engine runs them. "apart": a step runs all
    #: waiting prefills together, up to the prefill budget, or the decodes; only simulated GPUs can.
    prefills: Literal["beside", "apart"] = "beside"
    prefill: PrefillTimes
    decode: DecodeTimes
    #: The time of LoRA; free if left out.
    lora: LoraTimes = DistinctLora(kind="distinct", pages=(0,), ms=(0.0,))
    adapter_load: AdapterLoad
    #: Time of every step besides the device's work.
    step_overhead_ms: Milliseconds = 0.0

    @property
    def device_words(self) -> str:
        """The device, or the group of them, for people."""
        return devices_in_words(self.device, self.group_size)

    def check_holds_for(self, model: ModelConfig, dtype: ModelDtype, *, param: str) -> None:
        """Raises ConfigError for another model or data type than the profile's; ``param`` names the profile's key."""
        if mismatch := self.mismatch(model, dtype):
            raise ConfigError(f"{mismatch}; measure one with `punica-serve profile`", param=param)

    def mismatch(self, model: ModelConfig, dtype: ModelDtype) -> str | None:
        """How the profile's model or data type differs from these; None if it holds for both."""
        if difference := self.model.difference(ModelShape.of(model)):
            return f"the profile {self.name!r} is of another model than `engine.model` ({difference})"
        if dtype not in self.dtypes:
            return f"the profile {self.name!r} holds for {' and '.join(self.dtypes)}, and the engine uses {dtype}"
        return None


def devices_in_words(device: str, group_size: int) -> str:
    """A worker's devices, for people."""
    return f"{device!r}" if group_size == 1 else f"group of {group_size} {device!r}"


def shipped_profiles() -> tuple[str, ...]:
    """The names of the profiles that come with the package."""
    folder = files("punica_serve.performance") / "profiles"
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def load_profile(name: str, folder: Path | None = None, *, param: str = "simulation.profile") -> PerformanceProfile:
    """A shipped profile by its name, or a file, relative to ``folder``. Raises ConfigError; ``param`` names the key."""
    if name in shipped_profiles():
        path = Path(str(files("punica_serve.performance"))) / "profiles" / f"{name}.yaml"
    elif name.endswith((".yaml", ".yml")):
        path = (folder or Path.cwd()) / Path(name).expanduser()
    else:
        raise ConfigError(
            f"there is no performance profile {name!r}; give one of {', '.join(shipped_profiles())}, or a YAML file",
            param=param,
        )
    document = read_yaml(path, what="performance profile", example_key="decode")
    return validated(PerformanceProfile, document, source=str(path), folder=path.resolve().parent)


def write_profile(profile: PerformanceProfile, path: Path) -> None:
    """Writes a profile that ``load_profile`` can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(profile.model_dump(mode="json"), sort_keys=False, default_flow_style=None, width=120)
    path.write_text(text, encoding="utf-8")
