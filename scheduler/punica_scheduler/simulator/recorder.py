"""Records batch sizes, idle stretches and tokens of simulated GPUs."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from punica_serve.simulation.timeline import Timeline


class Recorder:
    """Counts into equal intervals of time; a step counts where it ends."""

    def __init__(self, gpu_uuids: Sequence[str], *, interval_s: float, max_batch_size: int) -> None:
        self._interval_s = interval_s
        self.max_batch_size = max_batch_size
        #: For each GPU: seconds times requests in each interval.
        self._request_s: dict[str, defaultdict[int, float]] = {uuid: defaultdict(float) for uuid in gpu_uuids}
        self._num_tokens: Counter[int] = Counter()
        self._num_arrivals: Counter[int] = Counter()
        self._queue_length: dict[int, int] = {}
        #: Seconds that all GPUs together spent in steps of each batch size.
        self.busy_s: defaultdict[int, float] = defaultdict(float)
        #: Since when a GPU runs nothing.
        self._idle_since_s: dict[str, float] = dict.fromkeys(gpu_uuids, 0.0)
        #: Lengths of all stretches in which a GPU ran nothing.
        self.idle_stretches_s: list[float] = []

    @property
    def num_unused_gpus(self) -> int:
        """GPUs that have run no step."""
        return sum(not request_s for request_s in self._request_s.values())

    def arrived(self, now_s: float) -> None:
        """Counts an arrival."""
        self._num_arrivals[int(now_s / self._interval_s)] += 1

    def began(self, gpu_uuid: str, now_s: float) -> None:
        """Ends the GPU's idle stretch, if it was idle."""
        since_s = self._idle_since_s.pop(gpu_uuid, now_s)
        if now_s > since_s:
            self.idle_stretches_s.append(now_s - since_s)

    def idled(self, gpu_uuid: str, now_s: float) -> None:
        """Begins an idle stretch of the GPU."""
        self._idle_since_s.setdefault(gpu_uuid, now_s)

    def stepped(self, gpu_uuid: str, now_s: float, duration_s: float, batch_size: int) -> None:
        """Counts a step of so many requests, at its end."""
        self._request_s[gpu_uuid][int(now_s / self._interval_s)] += batch_size * duration_s
        self.busy_s[batch_size] += duration_s

    def delivered(self, now_s: float, num_tokens: int) -> None:
        """Counts tokens delivered to a frontend."""
        self._num_tokens[int(now_s / self._interval_s)] += num_tokens

    def queued(self, now_s: float, length: int) -> None:
        """Records the queue's length."""
        self._queue_length[int(now_s / self._interval_s)] = length

    def finish(self, now_s: float) -> None:
        """Ends all idle stretches with the simulation."""
        for uuid in tuple(self._idle_since_s):
            self.began(uuid, now_s)

    def timeline(self, duration_s: float) -> Timeline:
        intervals = range(int(duration_s / self._interval_s) + 1)
        return Timeline(
            interval_s=self._interval_s,
            requests_per_s=[self._num_arrivals[number] / self._interval_s for number in intervals],
            tokens_per_s=[self._num_tokens[number] / self._interval_s for number in intervals],
            queue_length=[self._queue_length.get(number, 0) for number in intervals],
            batch_sizes={
                uuid: [request_s[number] / self._interval_s for number in intervals]
                for uuid, request_s in self._request_s.items()
            },
            max_batch_size=self.max_batch_size,
        )
