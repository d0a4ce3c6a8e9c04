"""The real worker, but a request with POISON_SEED kills it in the step after it was added, as a bad kernel would."""

import os
import signal

from punica_runner import worker
from punica_serve.engine import engine
from punica_serve.engine.step_output import StepOutput
from punica_serve.protocol import Request

POISON_SEED = 666


class PoisonableEngine(engine.Engine):
    _is_poisoned = False

    def add(self, request: Request, *, may_move: bool = False) -> None:
        super().add(request, may_move=may_move)
        self._is_poisoned = self._is_poisoned or request.sampling.seed == POISON_SEED

    def step(self) -> StepOutput:
        if self._is_poisoned:
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().step()


if __name__ == "__main__":
    engine.Engine = PoisonableEngine  # type: ignore[misc]
    worker.main()
