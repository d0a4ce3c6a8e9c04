"""Fixtures of a scheduler in words: see ``scheduler_in_words``; and of one behind websockets."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from punica_serve.protocol import AdapterRef
from scheduler_in_words import Cluster, adapter
from scheduler_peers import Peers, config, serving


@pytest.fixture
def new_cluster() -> Callable[..., Cluster]:
    """Called with a scheduler's settings."""
    return Cluster


@pytest.fixture
def filled() -> Callable[..., Cluster]:
    """Called with UUIDs: a cluster of equal GPUs, of which nobody has spoken to anyone."""

    def fill(*uuids: str, **gpu: Any) -> Cluster:
        cluster = Cluster()
        for uuid in uuids:
            cluster.gpu_joins(uuid, **gpu)
        return cluster

    return fill


@pytest.fixture
def cluster(filled: Callable[..., Cluster]) -> Cluster:
    """Two GPUs, A and B."""
    return filled("A", "B")


@pytest.fixture(name="adapter")
def adapter_fixture() -> Callable[..., AdapterRef]:
    """Called with a digest, and a rank if it matters."""
    return adapter


@pytest.fixture
async def peers() -> AsyncIterator[Peers]:
    """Frontends and runners of a scheduler on loopback."""
    async with serving(config()) as peers:
        yield peers
