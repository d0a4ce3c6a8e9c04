"""Quarantine for requests that may be poisonous, which means that they kill the worker that runs them.

A request is a suspect once two workers have died with it running: it, or a request beside it, may be the cause. A
suspect runs alone on its third try. NUM_CLEARING_TOKENS tokens clear it; a third death shows that it is poisonous, and
fails it. Any request that gets so many tokens in one assignment is cleared of earlier deaths, so only deaths in a row
count. Only worker deaths reported by a runner count; losing a link or a host says nothing about the requests on it.

Suspects have a queue of their own, and neither queue waits long for the other: a GPU is emptied for the next suspect,
and one suspect runs at a time, so quarantine takes at most one GPU of the cluster.
"""

from collections.abc import Mapping

from punica_scheduler.core.arrival_queue import ArrivalQueue
from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.request import NUM_SUSPICIOUS_LOSSES, RequestRecord
from punica_serve.errors import RequestFailed
from punica_serve.errors.invariants import require

#: More than one: a request may survive its prefill and kill the worker in a decode.
NUM_CLEARING_TOKENS = 16


class PoisonQuarantine:
    """The suspect that runs alone, and the GPU that is reserved for it or for the next suspect."""

    def __init__(self, suspects: ArrivalQueue) -> None:
        self._suspects = suspects
        self.running: RequestRecord | None = None
        self._num_tokens_to_pass = 0

    @property
    def next_suspect(self) -> RequestRecord | None:
        """The suspect to run next; None while one runs."""
        return None if self.running else self._suspects.head

    @property
    def is_idle(self) -> bool:
        """No suspect runs, and none waits."""
        return self.running is None and not self._suspects

    def begin(self, suspect: RequestRecord) -> None:
        require(self.running is None, "one suspect at a time")
        self.running = suspect
        self._num_tokens_to_pass = suspect.num_tokens + NUM_CLEARING_TOKENS

    def abort(self, record: RequestRecord) -> None:
        """The request has left its GPU. If it is still a suspect, it runs alone again later."""
        if self.running is record:
            self.running = None

    def clear_if_proven(self) -> None:
        """Clears the running suspect once it has enough tokens."""
        if self.running is not None and self.running.num_tokens >= self._num_tokens_to_pass:
            self.running.clear()
            self.running = None

    def reserved_gpu(self, gpus: Mapping[str, GpuRecord]) -> GpuRecord | None:
        """The GPU that is reserved for the running or the next suspect; no other request may be placed there.

        Prefers a GPU other than the suspect's last one, which may itself be broken, and then the one with the fewest
        requests to move. None if no suspect waits, or no GPU that takes requests could ever run it.
        """
        if self.running is not None and self.running.gpu_uuid is not None:
            return gpus[self.running.gpu_uuid]
        suspect = self.next_suspect
        if suspect is None:
            return None
        able = [gpu for gpu in gpus.values() if not gpu.is_draining and gpu.capacity.could_run(suspect)]
        last = suspect.last_gpu_uuid
        return min(able, key=lambda gpu: (gpu.uuid == last, len(gpu.working_set), gpu.uuid), default=None)

    def check_invariants(self, gpus: Mapping[str, GpuRecord]) -> None:
        for gpu in gpus.values():
            suspects = [record for record in gpu.working_set.values() if record.is_suspect]
            require(
                not suspects or suspects == [self.running] == list(gpu.working_set.values()), f"{gpu.uuid} is mixed"
            )
        require(self.running is None or self.running.gpu_uuid in gpus, "the running suspect has no GPU")


def record_death(record: RequestRecord) -> None:
    """Counts a worker's death with the request running on it."""
    if record.num_generated - record.num_generated_at_start >= NUM_CLEARING_TOKENS:
        record.clear()
    record.count_loss()


def poisoned(record: RequestRecord) -> RequestFailed:
    """The error for a request whose worker died while it ran alone."""
    adapter = record.request.adapter
    return RequestFailed(
        f"the request was running on {NUM_SUSPICIOUS_LOSSES + 1} workers when they died, alone on the last one: it"
        + (f", or its adapter {adapter.digest}," if adapter else "")
        + " seems to kill the worker that runs it; the runner's log says how it died",
        param="lora_id" if adapter else None,
    )
