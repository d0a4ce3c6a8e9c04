"""Progress output of the engine benchmarks: little, since drawing slows down the measured process."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import Progress

from punica_serve.engine.step_output import StepOutput

_UPDATE_S = 0.5


@contextmanager
def timed(progress: Progress, what: str) -> Iterator[None]:
    """Prints how long it took to make something."""
    started_s = time.perf_counter()
    yield
    progress.console.print(f"{what}: ready in {time.perf_counter() - started_s:.1f} s")


class TokenBar:
    """A progress bar of tokens with their rate, for one run after the other; called after every step."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None, visible=False)
        self._name = ""
        self._num_tokens = 0
        self._started_s = self._shown_s = 0.0

    def start(self, name: str, total_tokens: int) -> None:
        """Begins a run of ``total_tokens`` tokens."""
        self._name, self._num_tokens = name, 0
        self._started_s = self._shown_s = time.perf_counter()
        self._progress.reset(self._task, total=total_tokens, description=name, visible=True)

    def on_step(self, output: StepOutput) -> None:
        """Counts a step's tokens."""
        self.add(len(output.tokens))

    def add(self, num_tokens: int) -> None:
        """Counts tokens, and sometimes updates the bar."""
        self._num_tokens += num_tokens
        now_s = time.perf_counter()
        if now_s - self._shown_s > _UPDATE_S:
            self._shown_s = now_s
            rate = self._num_tokens / (now_s - self._started_s)
            self._progress.update(
                self._task, completed=self._num_tokens, description=f"{self._name} {rate:,.0f} tokens/s"
            )
