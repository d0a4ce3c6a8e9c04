"""The requests that the load is drawn from, and every token of their answers, from an engine that nothing disturbs."""

from dataclasses import dataclass
from itertools import product
from typing import Any

from punica_serve.config.cluster import ClusterConfig
from punica_serve.offline.llm import LLM
from punica_serve.protocol import SamplingParams

LENGTHS = (24, 64, 128, 256)
TEMPERATURES = (0.0, 0.8)


@dataclass(frozen=True)
class Reference:
    """A request and its answer. Shared by all streams of it."""

    prompt: str
    lora_id: str | None
    temperature: float
    seed: int
    max_tokens: int
    token_ids: tuple[int, ...] = ()

    @property
    def body(self) -> dict[str, Any]:
        """The fields of a request frame."""
        return {
            "prompt": self.prompt,
            "lora_id": self.lora_id,
            "temperature": self.temperature,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
            "ignore_eos": True,
        }

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(temperature=self.temperature, seed=self.seed, max_tokens=self.max_tokens, ignore_eos=True)


def make_references(config: ClusterConfig) -> list[Reference]:
    """Base and adapters, greedy and drawn, short and long: 48 requests with the demo's five adapters."""
    kinds = product(LENGTHS, (None, *config.adapters), TEMPERATURES)
    asked = [
        Reference(str(100 + index), lora_id, temperature, 1000 + index, max_tokens)
        for index, (max_tokens, lora_id, temperature) in enumerate(kinds)
    ]
    with _undisturbed(config) as llm:
        answers = llm.generate(
            [reference.prompt for reference in asked],
            [reference.lora_id for reference in asked],
            [reference.sampling for reference in asked],
            progress=False,
        )
    return [
        Reference(**{**vars(reference), "token_ids": tuple(answer.token_ids)})
        for reference, answer in zip(asked, answers, strict=True)
    ]


def _undisturbed(config: ClusterConfig) -> LLM:
    adapters = {name: str(folder) for name, folder in config.adapters.items()}
    settings = config.engine.model_dump(exclude={"model"}, exclude_none=True)
    return LLM(str(config.engine.model), adapters, **settings)
