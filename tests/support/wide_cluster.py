"""A cluster of 64 GPUs in memory, busy with nothing but changing."""

from msgspec.structs import replace

from echo_cluster import EchoCluster
from punica_serve.protocol import (
    ClusterHistory,
    ClusterSnapshot,
    GpuHistory,
    GpuSnapshot,
    Mark,
    Percentiles,
    RecentFigures,
)

S = 1_000_000_000


class WideCluster(EchoCluster):
    """All batches change from look to look, and adapters come and go."""

    num_gpus, num_adapters, num_samples = 64, 40, 600
    #: From one look to the next; 0 stops the clock.
    look_ns = S // 5

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 1_800_000_000 * S
        self.num_looks = 0

    @staticmethod
    def uuid(gpu: int) -> str:
        return f"GPU-{gpu:08}"

    @staticmethod
    def name(gpu: int) -> str:
        return f"host-{gpu // 8}/{gpu % 8}"

    def batch_size(self, gpu: int) -> int:
        return (7 * gpu + self.num_looks) % 33

    def past_batch_size(self, gpu: int, sample: int) -> int:
        return (gpu + sample) % 33

    async def cluster(self) -> ClusterSnapshot:
        self.num_looks += 1
        self.now_ns += self.look_ns
        self.marks = [
            *self.marks,
            Mark(self.num_looks, self.now_ns, "migrated", (self.uuid(self.num_looks % self.num_gpus),), 3),
        ][-256:]
        cluster = await super().cluster()
        times = Percentiles(0.1, 0.2, 0.3)
        return replace(
            cluster,
            gpus=tuple(self._gpu(cluster, gpu) for gpu in range(self.num_gpus)),
            counters={"arrived": 10 * self.num_looks, "tokens": 400 * self.num_looks},
            recent=RecentFigures(30.0, 50.0, 2000.0, times, times),
        )

    def _gpu(self, cluster: ClusterSnapshot, index: int) -> GpuSnapshot:
        first = index + self.num_looks // 10
        adapters = tuple(f"{first + offset:064x}" for offset in range(self.num_adapters))
        used_ns = tuple(self.now_ns - offset * S for offset in range(self.num_adapters))
        gpu = cluster.gpus[0]
        return replace(
            gpu,
            gpu=replace(gpu.gpu, uuid=self.uuid(index), name=self.name(index)),
            batch_size_mean=float(self.batch_size(index)),
            batch_size_max=self.batch_size(index),
            resident_adapters=adapters,
            adapters_used_ns=used_ns,
        )

    async def history(self) -> ClusterHistory:
        count = self.num_samples
        counters = tuple(range(count))
        times = (Percentiles(0.1, 0.2, 0.3),) * count
        return ClusterHistory(
            at_ns=tuple(self.now_ns - (count - index) * S for index in range(count)),
            arrived=counters,
            tokens=counters,
            queue_length=counters,
            first_token_s=times,
            inter_token_s=times,
            gpus={
                self.uuid(gpu): GpuHistory(
                    tuple(float(self.past_batch_size(gpu, at)) for at in counters),
                    tuple(self.past_batch_size(gpu, at) for at in counters),
                    counters,
                    self.name(gpu),
                )
                for gpu in range(self.num_gpus)
            },
        )
