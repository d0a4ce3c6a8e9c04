"""A step on the device, and its launch."""

import time
from dataclasses import dataclass
from typing import NamedTuple

from punica_serve.engine.batching.step_plan import StepPlan
from punica_serve.engine.step_runner import LaunchedStep, StepRunner


class StepKind(NamedTuple):
    """Steps of one kind last about as long."""

    #: Bits of the number of prefill tokens, and of the number of decodes.
    prefill_bits: int
    decode_bits: int
    #: Whether it may have waited for layers of an adapter, or for CPU processes.
    is_early: bool = False

    @property
    def is_plain_prefill(self) -> bool:
        """Whether it was a prefill that waited for nothing and had no decodes beside it."""
        return self.prefill_bits > 0 and not self.decode_bits and not self.is_early


@dataclass(frozen=True, slots=True)
class InFlight:
    """A step that is on the device."""

    plan: StepPlan
    step: LaunchedStep
    launched_s: float

    @property
    def kind(self) -> StepKind:
        plan = self.plan
        return StepKind(plan.num_prefill_tokens.bit_length(), len(plan.decodes).bit_length(), plan.is_early)


def launch(plan: StepPlan, runner: StepRunner) -> InFlight:
    """Launches a step. From here on its sequences count the tokens that it caches and samples, though it still runs."""
    launched_s = time.perf_counter()
    step = runner.launch(plan)
    plan.advance()
    for chunk in plan.prefills:
        chunk.sequence.is_unsure = plan.assist is not None
    return InFlight(plan, step, launched_s)
