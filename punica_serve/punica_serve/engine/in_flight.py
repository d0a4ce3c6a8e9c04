"""A step on the device, and its launch."""

import time
from dataclasses import dataclass

from punica_serve.engine.batching.step_plan import StepPlan
from punica_serve.engine.step_runner import LaunchedStep, StepRunner

#: Steps of one kind last about as long: bits of the number of prefill tokens, and of the number of decodes.
StepKind = tuple[int, int]


@dataclass(frozen=True, slots=True)
class InFlight:
    """A step that is on the device."""

    plan: StepPlan
    step: LaunchedStep
    launched_s: float

    @property
    def kind(self) -> StepKind:
        return self.plan.num_prefill_tokens.bit_length(), len(self.plan.decodes).bit_length()


def launch(plan: StepPlan, runner: StepRunner) -> InFlight:
    """Launches a step. From here on its sequences count the tokens that it caches and samples, though it still runs."""
    launched_s = time.perf_counter()
    step = runner.launch(plan)
    plan.advance()
    for chunk in plan.prefills:
        chunk.sequence.is_unsure = plan.assist is not None
    return InFlight(plan, step, launched_s)
