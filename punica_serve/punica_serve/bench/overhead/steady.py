"""Steady decode steps of an engine: every step has the same requests, each one token further."""

import statistics
from collections.abc import Callable, Sequence
from itertools import count

from punica_serve.bench.driver import step
from punica_serve.engine.engine import Engine
from punica_serve.engine.step_output import StepOutput
from punica_serve.errors import RequestFailed
from punica_serve.protocol import AdapterRef, Request, SamplingParams

#: Tokens of each prompt. LoRA does not depend on the context, and prefills are not measured.
NUM_PROMPT_TOKENS = 8
#: Untimed steps after the last prefill: with overlap scheduling, times settle after two.
NUM_SETTLING_STEPS = 4
_WAIT_S = 1.0

_numbers = count()


class SteadyDecode:
    """Keeps a batch decoding. A context manager: the batch is removed at its end."""

    def __init__(self, engine: Engine, adapters: Sequence[AdapterRef | None]) -> None:
        """One request for each of ``adapters``; None is the base model."""
        self._engine = engine
        self._requests = [self._request(adapter) for adapter in adapters]

    def __enter__(self) -> "SteadyDecode":
        """Adds the requests and runs steps until all of them decode."""
        for request in self._requests:
            self._engine.add(request)
        settled = 0
        while settled < NUM_SETTLING_STEPS:
            output = step(self._engine)
            if not output.has_run:
                self._engine.wait(_WAIT_S)
            settled = settled + 1 if self._is_steady(output) else 0
        return self

    def __exit__(self, *_: object) -> None:
        for request in self._requests:
            self._engine.cancel(request.request_id)
        # The device must be idle before anything else is measured.
        while step(self._engine).has_run:
            pass

    def run(self, num_steps: int) -> list[float]:
        """Seconds of each step. Raises RequestFailed if a step had another batch than requested."""
        outputs = [step(self._engine) for _ in range(num_steps)]
        if not all(map(self._is_steady, outputs)):
            raise RequestFailed(f"not every step decoded all of {len(self._requests)} requests")
        return [output.duration_s for output in outputs]

    def _is_steady(self, output: StepOutput) -> bool:
        return output.batch_size == len(self._requests) and output.num_prefill_tokens == 0

    def _request(self, adapter: AdapterRef | None) -> Request:
        number = next(_numbers)
        prompt = tuple((number * 7 + token * 3) % 64 for token in range(NUM_PROMPT_TOKENS))
        params = SamplingParams(max_tokens=self._engine.longest_request - NUM_PROMPT_TOKENS, ignore_eos=True)
        return Request(f"steady-{number}", number, prompt, params, adapter)


def median_step_s(
    engine: Engine, adapters: Sequence[AdapterRef | None], num_steps: int, advance: Callable[[], None]
) -> float:
    """Median seconds of a decode step of this batch."""
    with SteadyDecode(engine, adapters) as steady:
        seconds = statistics.median(steady.run(num_steps))
    advance()
    return seconds
