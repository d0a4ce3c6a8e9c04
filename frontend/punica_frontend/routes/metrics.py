"""GET /metrics: Prometheus' text format."""

import asyncio
import contextlib
import time

from fastapi import APIRouter, Request, Response

from punica_frontend.api.caller import admin_of
from punica_frontend.api.response_docs import text_answer
from punica_frontend.generation.admission import Admission
from punica_frontend.metrics.adapters import NamedAdapter, adapter_lines
from punica_frontend.metrics.cluster import cluster_lines
from punica_frontend.metrics.metrics import Metrics
from punica_frontend.metrics.own import own_lines
from punica_frontend.metrics.text import CONTENT_TYPE
from punica_frontend.scheduler_link.scheduler_client import SchedulerClient
from punica_serve.errors import AdapterNotFound, AdapterRejected, ClusterUnavailable
from punica_serve.protocol import AdapterResidency, ClusterSnapshot
from punica_serve.registry.names import SHARED_TENANT
from punica_serve.registry.registry import Registry

#: A slower scheduler's metrics are left out: part of a scrape is better than none.
SNAPSHOT_TIMEOUT_S = 2.0


def metrics_router(
    client: SchedulerClient,
    registry: Registry,
    admission: Admission,
    metrics: Metrics,
    *,
    base_name: str,
    cache_dtype: str,
    is_public: bool,
) -> APIRouter:
    """``cache_dtype``: the KvCache's data type. ``is_public``: open to everyone, otherwise for administrators."""
    router = APIRouter(tags=["cluster"])

    @router.get(
        "/metrics",
        summary="Metrics for Prometheus",
        response_class=Response,
        responses={200: text_answer("In Prometheus' text format, 0.0.4.")},
    )
    async def scrape(request: Request) -> Response:
        """Returns this frontend's metrics, and the cluster's while the scheduler answers."""
        if not is_public:
            admin_of(request)
        lines = list(own_lines(metrics, base_name, is_connected=client.connected, is_draining=not admission.is_open))
        if cluster := await _cluster(client):
            named = await _named_adapters(client, registry, metrics)
            lines += adapter_lines(metrics, named, cluster, base_name, time.time())
            # For a thousand GPUs this takes ten milliseconds.
            shared = cluster_lines(cluster, base_name, cache_dtype=cache_dtype)
            lines.append(await asyncio.to_thread("".join, shared))
        return Response("".join(lines), media_type=CONTENT_TYPE)

    return router


async def _cluster(client: SchedulerClient) -> ClusterSnapshot | None:
    with contextlib.suppress(ClusterUnavailable, TimeoutError):
        async with asyncio.timeout(SNAPSHOT_TIMEOUT_S):
            return await client.cluster()
    return None


async def _named_adapters(client: SchedulerClient, registry: Registry, metrics: Metrics) -> list[NamedAdapter]:
    """Returns registered adapters that have labels of their own."""
    adapters = []
    for name in metrics.adapters.names():
        with contextlib.suppress(AdapterNotFound, AdapterRejected):  # the base model, or gone
            adapters.append(registry.snapshot.adapter(SHARED_TENANT, name, is_admin=True))
    resident: dict[str, AdapterResidency] = {}
    if adapters:
        with contextlib.suppress(ClusterUnavailable, TimeoutError):
            async with asyncio.timeout(SNAPSHOT_TIMEOUT_S):
                found = await client.residency([adapter.ref.digest for adapter in adapters])
            resident = {each.digest: each for each in found}
    return [NamedAdapter(each.full_name, each.pinned, resident.get(each.ref.digest)) for each in adapters]
