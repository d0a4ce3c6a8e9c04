"""GET /metrics: Prometheus' text."""

import asyncio
import contextlib
import time

from fastapi import APIRouter, Request, Response

from punica_frontend.admission import Admission
from punica_frontend.caller import admin_of
from punica_frontend.metrics.adapters import NamedAdapter, adapter_lines
from punica_frontend.metrics.cluster import cluster_lines
from punica_frontend.metrics.figures import Figures
from punica_frontend.metrics.own import own_lines
from punica_frontend.metrics.text import CONTENT_TYPE
from punica_frontend.openapi_page import text_answer
from punica_frontend.scheduler_client import SchedulerClient
from punica_serve.errors import AdapterNotFound, AdapterRejected, ClusterUnavailable
from punica_serve.protocol import AdapterResidency, ClusterSnapshot
from punica_serve.registry.names import SHARED_TENANT
from punica_serve.registry.registry import Registry

#: A scheduler that does not answer by then is left out: a scrape with half the figures is worth more than none.
SNAPSHOT_TIMEOUT_S = 2.0


def metrics_router(
    client: SchedulerClient,
    registry: Registry,
    admission: Admission,
    figures: Figures,
    *,
    base_name: str,
    is_public: bool,
) -> APIRouter:
    """``is_public``: for anybody, else for administrators."""
    router = APIRouter(tags=["cluster"])

    @router.get(
        "/metrics",
        summary="Figures for Prometheus",
        response_class=Response,
        responses={200: text_answer("In Prometheus' text format, 0.0.4.")},
    )
    async def metrics(request: Request) -> Response:
        """This frontend's own figures, and the cluster's while the scheduler answers."""
        if not is_public:
            admin_of(request)
        lines = list(own_lines(figures, base_name, is_connected=client.connected, is_draining=not admission.is_open))
        if cluster := await _cluster(client):
            named = await _named_adapters(client, registry, figures)
            lines += adapter_lines(figures, named, cluster, base_name, time.time())
            # A thousand GPUs are ten milliseconds of text.
            lines.append(await asyncio.to_thread("".join, cluster_lines(cluster, base_name)))
        return Response("".join(lines), media_type=CONTENT_TYPE)

    return router


async def _cluster(client: SchedulerClient) -> ClusterSnapshot | None:
    with contextlib.suppress(ClusterUnavailable, TimeoutError):
        async with asyncio.timeout(SNAPSHOT_TIMEOUT_S):
            return await client.cluster()
    return None


async def _named_adapters(client: SchedulerClient, registry: Registry, figures: Figures) -> list[NamedAdapter]:
    """Those that have series of their own, and are still registered."""
    adapters = []
    for name in figures.adapters.names():
        with contextlib.suppress(AdapterNotFound, AdapterRejected):  # the base model, or gone
            adapters.append(registry.snapshot.adapter(SHARED_TENANT, name, is_admin=True))
    resident: dict[str, AdapterResidency] = {}
    if adapters:
        with contextlib.suppress(ClusterUnavailable, TimeoutError):
            async with asyncio.timeout(SNAPSHOT_TIMEOUT_S):
                found = await client.residency([adapter.ref.digest for adapter in adapters])
            resident = {each.digest: each for each in found}
    return [NamedAdapter(each.full_name, each.pinned, resident.get(each.ref.digest)) for each in adapters]
