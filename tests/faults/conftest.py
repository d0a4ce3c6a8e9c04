"""One cluster and one set of references for all tests of this folder: everything must get over what comes before it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from punica_faults import cluster as clusters
from punica_faults import recovery
from punica_faults.audit import audit
from punica_faults.cluster import Cluster, cluster_document
from punica_faults.recovery import Recovery
from punica_faults.references import Reference, make_references
from punica_serve.config.cluster import parse_config

RECOVERIES = pytest.StashKey[list[Recovery]]()


@pytest.fixture(scope="session")
def references() -> list[Reference]:
    return make_references(parse_config(cluster_document(), source="tests/faults", folder=Path.cwd()))


@pytest.fixture(scope="session")
async def shared_cluster(
    references: list[Reference], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cluster]:
    """Started after the references are made, which takes both cores."""
    async with clusters.running(tmp_path_factory.mktemp("faults")) as cluster:
        yield cluster


@pytest.fixture
async def cluster(shared_cluster: Cluster) -> AsyncIterator[Cluster]:
    """Whole and idle before each test, and audited after it."""
    await shared_cluster.until_whole()
    yield shared_cluster
    await audit(shared_cluster)


@pytest.fixture(scope="session")
def recoveries(pytestconfig: pytest.Config) -> Iterator[list[Recovery]]:
    """Printed at the end, and written to bench-results/recovery.json."""
    measured = pytestconfig.stash.setdefault(RECOVERIES, [])
    yield measured
    recovery.write(measured, pytestconfig.rootpath / Path("bench-results/recovery.json"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if measured := config.stash.get(RECOVERIES, []):
        terminalreporter.section("recovery")
        for line in recovery.table(measured):
            terminalreporter.write_line(line)
