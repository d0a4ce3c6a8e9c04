"""The times of `bench prompts`, and the table for `engine.attention: auto` that its steps make."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import ConfigError
from punica_serve.performance.attention_table import AttentionTable, AttentionTime


class LaunchShape(NamedTuple):
    """A step with rows of prompts alone."""

    prompts: int
    #: Rows of all prompts together.
    new_tokens: int
    #: Tokens that the last row of a prompt sees.
    context: int


@dataclass(slots=True)
class PromptTimes:
    """The least times, by backend."""

    #: ms to the first token of all prompts, by their length.
    ms: dict[tuple[int, str], float] = field(default_factory=dict)
    step_us: dict[tuple[LaunchShape, str], float] = field(default_factory=dict)

    def add(self, length: int, backend: str, ms: float, steps: Iterable[tuple[LaunchShape, float]]) -> None:
        """The times of one run."""
        self.ms[length, backend] = min(ms, self.ms.get((length, backend), ms))
        for shape, us in steps:
            self.step_us[shape, backend] = min(us, self.step_us.get((shape, backend), us))

    def table(self, model: ModelConfig, dtype: str, device: str) -> AttentionTable:
        """The shapes that both backends ran. Raises ConfigError if there are none."""
        ours, theirs = (
            {shape: us for (shape, name), us in self.step_us.items() if name == backend}
            for backend in ("triton", "flashinfer")
        )
        if not (both := sorted(ours.keys() & theirs.keys())):
            message = "`--table`: no step of both backends had rows of prompts alone; leave out `--others`"
            raise ConfigError(f"{message}, and give `--together` prompts that fit `--prefill-budget`", param="table")
        return AttentionTable(
            version=1,
            device=device,
            source=f"punica-serve bench prompts, {model.name} in {dtype}, {time.strftime('%Y-%m-%d', time.gmtime())}",
            times=tuple(_row(model, shape, ours[shape], theirs[shape]) for shape in both),
        )


def _row(model: ModelConfig, shape: LaunchShape, triton_us: float, flashinfer_us: float) -> AttentionTime:
    return AttentionTime(
        heads=model.num_attention_heads,
        kv_heads=model.num_key_value_heads,
        head_dim=model.head_dim,
        **shape._asdict(),
        triton_us=round(triton_us, 1),
        flashinfer_us=round(flashinfer_us, 1),
    )
