"""A GPU as people see it, without telemetry."""

from operator import attrgetter

from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.request import RequestRecord
from punica_serve.protocol import GpuDetails, GpuSnapshot, PlacedRequest


def snapshot_of(gpu: GpuRecord, now_ns: int) -> GpuSnapshot:
    """The GPU's state in figures."""
    return GpuSnapshot(
        gpu=gpu.info,
        runner_id=gpu.runner_id,
        working_set=len(gpu.working_set),
        free_kv_pages=gpu.kv_pages.num_reported_free,
        resident_adapters=gpu.resident,
        steps=gpu.num_steps,
        tokens=gpu.num_tokens,
        is_draining=gpu.is_draining,
        adapters_used_ns=tuple(
            now_ns if digest in gpu.adapters.refcounts else gpu.unused_since_ns.get(digest, 0)
            for digest in gpu.resident
        ),
        num_cached_adapters=len(gpu.cached),
        num_known_kv_pages=gpu.num_known_pages,
        prefix_cache_queries=gpu.prefix_cache_queries,
        prefix_cache_hits=gpu.prefix_cache_hits,
    )


def details_of(gpu: GpuRecord, now_ns: int) -> GpuDetails:
    """The snapshot with the GPU's requests, oldest first."""
    records = sorted(gpu.working_set.values(), key=attrgetter("arrival"))
    placed = tuple([_placed(record) for record in records])
    return GpuDetails(now_ns, snapshot_of(gpu, now_ns), gpu.adapters.used_pages, placed)


def _placed(record: RequestRecord) -> PlacedRequest:
    request = record.request
    return PlacedRequest(
        record.request_id,
        request.tenant_id,
        request.tenant,
        record.digest,
        record.num_prompt,
        record.num_generated,
        record.max_tokens,
        record.admitted_ns,
    )
