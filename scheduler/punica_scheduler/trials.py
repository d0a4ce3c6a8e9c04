"""Requests that may be poison: they kill the worker that runs them.

A request that was running on two workers when they died is a suspect: it, or one that was beside it. A suspect runs
alone on its third try. It is acquitted by NUM_TRIAL_TOKENS tokens, and then is a request like all others again; a third
death is its own, and fails it. So many tokens in one stay acquit any request of the deaths before it: what counts are
deaths in a row. And only a worker's death counts, which its runner tells: a runner that is lost as a whole, or whose
link is, takes down whatever happens to run there.

Suspects stand in a line of their own, where neither line waits long for the other: the next suspect's GPU is emptied
rather than waited for, and there is one trial at a time, so that trials take one GPU of the cluster at most.
"""

from collections.abc import Mapping

from punica_scheduler.gpu import GpuRecord
from punica_scheduler.line import Line
from punica_scheduler.request import NUM_SUSPICIOUS_LOSSES, RequestRecord
from punica_serve.errors import RequestFailed

#: A poison that spares the first tokens (a prefill may pass where a decode kills) must not look innocent.
NUM_TRIAL_TOKENS = 16


class Trials:
    """The suspect that runs alone, and which GPU is kept for it or for the next in the queue."""

    def __init__(self, suspects: Line) -> None:
        self._suspects = suspects
        self.on_trial: RequestRecord | None = None
        self._num_tokens_to_pass = 0

    @property
    def next_suspect(self) -> RequestRecord | None:
        """Whose turn it is now."""
        return None if self.on_trial else self._suspects.head

    @property
    def is_idle(self) -> bool:
        """Nobody is on trial, and nobody waits for one."""
        return self.on_trial is None and not self._suspects

    def begin(self, suspect: RequestRecord) -> None:
        assert self.on_trial is None, "one trial at a time"
        self.on_trial = suspect
        self._num_tokens_to_pass = suspect.num_tokens + NUM_TRIAL_TOKENS

    def break_off(self, record: RequestRecord) -> None:
        """The request is taken off its GPU, for whatever reason; if it is still a suspect, it is tried anew."""
        if self.on_trial is record:
            self.on_trial = None

    def note_progress(self) -> None:
        """Acquits the request on trial, if there is one, once it has the tokens for it."""
        if self.on_trial is not None and self.on_trial.num_tokens >= self._num_tokens_to_pass:
            self.on_trial.num_losses = 0
            self.on_trial = None

    def gpu_apart(self, gpus: Mapping[str, GpuRecord]) -> GpuRecord | None:
        """The GPU that is kept for a trial, under way or next; no other request may be placed there.

        Rather not the one that was lost last, which may itself be what is broken; then the one with the least to move.
        None when nobody waits, or when no GPU that takes requests could ever run the next suspect.
        """
        if self.on_trial is not None and self.on_trial.gpu_uuid is not None:
            return gpus[self.on_trial.gpu_uuid]
        suspect = self.next_suspect
        if suspect is None:
            return None
        able = [gpu for gpu in gpus.values() if not gpu.is_draining and gpu.capacity.could_run(suspect)]
        last = suspect.last_gpu_uuid
        return min(able, key=lambda gpu: (gpu.uuid == last, len(gpu.working_set), gpu.uuid), default=None)

    def check_invariants(self, gpus: Mapping[str, GpuRecord]) -> None:
        for gpu in gpus.values():
            suspects = [record for record in gpu.working_set.values() if record.is_suspect]
            assert not suspects or suspects == [self.on_trial] == list(gpu.working_set.values()), f"{gpu.uuid} is mixed"
        assert self.on_trial is None or self.on_trial.gpu_uuid in gpus, "a trial takes place nowhere"


def note_death(record: RequestRecord) -> None:
    """The worker died with the request running on it."""
    if record.num_generated - record.num_generated_at_start >= NUM_TRIAL_TOKENS:
        record.num_losses = 0
    record.num_losses += 1


def convicted(record: RequestRecord) -> RequestFailed:
    """What the client of a request that was lost once more, alone, is told."""
    adapter = record.request.adapter
    return RequestFailed(
        f"the request was running on {NUM_SUSPICIOUS_LOSSES + 1} workers when they died, alone on the last one: it"
        + (f", or its adapter {adapter.digest}," if adapter else "")
        + " seems to kill the worker that runs it; the runner's log says how it died",
        param="lora_id" if adapter else None,
    )
