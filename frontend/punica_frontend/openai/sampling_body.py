"""Fields that bodies of completions and of chats share."""

from typing import Any, ClassVar

from pydantic import Field

from punica_frontend.api.schemas import CACHE_SALT, MAX_STOP_TOKENS, CacheSalt, SloBody, StopList, Text
from punica_frontend.fields.lenient_body import LenientBody
from punica_frontend.fields.lists import STREAM_HINTS, FieldLists
from punica_frontend.generation.choices import MAX_CHOICES
from punica_serve.protocol.sampling_ranges import RANGES

_NUM_SEEDS = 1 << 64


def in_range(name: str) -> dict[str, Any]:
    """Returns a sampling parameter's range as keywords of a pydantic field."""
    return RANGES[name].as_constraints()


class StreamOptions(LenientBody):
    lists: ClassVar[FieldLists] = FieldLists(STREAM_HINTS)

    include_usage: bool | None = Field(None, description="Add a last chunk, without choices, with the usage.")
    continuous_usage_stats: bool | None = Field(
        None, description="Add the usage of its choice so far to every chunk, as in vLLM; needs include_usage."
    )


class SamplingBody(LenientBody):
    """Sampling fields. Fields that are null or left out take the model's defaults."""

    keeps_empty: ClassVar[frozenset[str]] = frozenset({"slo"})

    model: Text | None = Field(
        None, description="The base model, an adapter, tenant/adapter or base:adapter; by default the base model."
    )
    max_tokens: int | None = Field(None, **in_range("max_tokens"))
    n: int | None = Field(None, ge=1, le=MAX_CHOICES, description="Choices of each prompt; each has seed + its index.")
    temperature: float | None = Field(None, **in_range("temperature"))
    top_p: float | None = Field(None, **in_range("top_p"))
    seed: int | None = Field(None, ge=-(1 << 63), le=(1 << 64) - 1)
    stop: StopList | None = None
    presence_penalty: float | None = Field(None, **in_range("presence_penalty"))
    frequency_penalty: float | None = Field(None, **in_range("frequency_penalty"))
    stream: bool | None = Field(None, description="Answer with server-sent events, then [DONE].")
    stream_options: StreamOptions | None = None
    min_p: float | None = Field(None, **in_range("min_p"), description="As in vLLM.")
    top_k: int | None = Field(None, **in_range("top_k") | {"ge": -1}, description="0 and -1 keep all tokens.")
    repetition_penalty: float | None = Field(None, **in_range("repetition_penalty"))
    min_tokens: int | None = Field(None, **in_range("min_tokens"))
    stop_token_ids: list[int] | None = Field(None, max_length=MAX_STOP_TOKENS, fail_fast=True)
    ignore_eos: bool | None = None
    slo: SloBody | None = Field(None, description="Promises of each choice; others are the tenant's.")
    cache_salt: CacheSalt | None = Field(None, description=CACHE_SALT)

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def has_stream_options(self) -> bool:
        """Whether any stream option asks for something."""
        return bool(self.stream_options and any(value for value in self.stream_options.__dict__.values()))

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def native_fields(self) -> dict[str, Any]:
        """Returns the fields that GenerateFields has too, under their names there."""
        return {
            "min_tokens": self.min_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": None if self.top_k is None else max(0, self.top_k),
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "presence_penalty": self.presence_penalty or 0.0,
            "frequency_penalty": self.frequency_penalty or 0.0,
            # OpenAI's seeds are signed.
            "seed": None if self.seed is None else self.seed % _NUM_SEEDS,
            "stop": self.stop,
            "stop_token_ids": self.stop_token_ids,
            "ignore_eos": bool(self.ignore_eos),
            "slo": self.slo,
            "cache_salt": self.cache_salt,
        }
