"""GET /metrics: Prometheus' text."""

import asyncio
import contextlib

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from punica_frontend.admission import Admission
from punica_frontend.figures import Figures
from punica_frontend.metrics import cluster_families, exposition, frontend_families
from punica_frontend.scheduler_client import SchedulerClient
from punica_serve.errors import ClusterUnavailable
from punica_serve.protocol import ClusterSnapshot

#: A scheduler that does not answer by then is left out: a scrape with half the figures is worth more than none.
SNAPSHOT_TIMEOUT_S = 2.0


def metrics_router(client: SchedulerClient, admission: Admission, figures: Figures) -> APIRouter:
    router = APIRouter(tags=["cluster"])

    @router.get("/metrics", summary="Figures for Prometheus", response_class=Response)
    async def metrics() -> Response:
        """This frontend's own figures, and the cluster's while the scheduler answers."""
        families = list(frontend_families(figures, is_connected=client.connected, is_draining=not admission.is_open))
        if cluster := await _cluster(client):
            families += cluster_families(cluster)
        # A thousand GPUs are tens of milliseconds of text.
        text = await asyncio.to_thread(exposition, families)
        return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return router


async def _cluster(client: SchedulerClient) -> ClusterSnapshot | None:
    with contextlib.suppress(ClusterUnavailable, TimeoutError):
        async with asyncio.timeout(SNAPSHOT_TIMEOUT_S):
            return await client.cluster()
    return None
