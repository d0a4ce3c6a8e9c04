"""What bodies of completions and of chats have in common."""

from typing import Any

from pydantic import ConfigDict, Field

from punica_frontend.choices import MAX_CHOICES
from punica_frontend.schemas import MAX_STOP_TOKENS, Body, StopList, Text
from punica_serve.sampling_ranges import RANGES

_NUM_SEEDS = 1 << 64


def in_range(name: str) -> dict[str, Any]:
    """The range of a sampling parameter, as keywords of a field."""
    return RANGES[name].as_constraints()


class LenientBody(Body):
    """Unknown fields are kept: some of them have to be refused."""

    model_config = ConfigDict(extra="allow")


class StreamOptions(LenientBody):
    include_usage: bool | None = Field(None, description="A last chunk, without choices, tells the usage.")


class SamplingBody(LenientBody):
    """Fields that are null or left out take the model's own defaults."""

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
    min_p: float | None = Field(None, **in_range("min_p"), description="As in vLLM, as are those below.")
    top_k: int | None = Field(None, **in_range("top_k") | {"ge": -1}, description="0 and -1 keep all tokens.")
    repetition_penalty: float | None = Field(None, **in_range("repetition_penalty"))
    min_tokens: int | None = Field(None, **in_range("min_tokens"))
    stop_token_ids: list[int] | None = Field(None, max_length=MAX_STOP_TOKENS, fail_fast=True)
    ignore_eos: bool | None = None

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def native_fields(self) -> dict[str, Any]:
        """The fields of GenerateFields that mean the same there."""
        return {
            "min_tokens": self.min_tokens or 0,
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
        }
