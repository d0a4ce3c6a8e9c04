import asyncio
import logging
from collections.abc import Sequence
from typing import cast

import pytest

from punica_frontend.api.caller import Caller
from punica_frontend.tenancy import usage_writer
from punica_frontend.tenancy.meter import BilledPrompt, Meter
from punica_frontend.tenancy.usage_writer import UsageWriter
from punica_serve.errors import RegistryUnavailable
from punica_serve.registry.records import Usage
from punica_serve.registry.registry import Registry
from waits import until


class FlakyRegistry:
    """Counts a batch once, by its source and number. ``is_down``: says nothing of what it did, if it did it."""

    def __init__(self) -> None:
        self.is_down = False
        self.takes_all_the_same = False
        self.batches: dict[tuple[str, int], Sequence[Usage]] = {}

    async def add_usage(self, rows: Sequence[Usage], *, source: str, number: int) -> None:
        if not self.is_down or self.takes_all_the_same:
            assert self.batches.setdefault((source, number), list(rows)) == list(rows)
        if self.is_down:
            raise RegistryUnavailable("the registry is down")

    @property
    def num_tokens(self) -> int:
        return sum(row.num_generated_tokens for rows in self.batches.values() for row in rows)


@pytest.fixture
def registry() -> FlakyRegistry:
    return FlakyRegistry()


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
def writer(meter: Meter, registry: FlakyRegistry) -> UsageWriter:
    return UsageWriter(meter, cast(Registry, registry))


def use(meter: Meter, num_tokens: int, tenant: str = "acme") -> None:
    meter.begin(Caller(f"{tenant}-1", tenant, "user"), None, BilledPrompt(1)).add_tokens(num_tokens)


async def test_nothing_is_written_of_nothing(writer: UsageWriter, registry: FlakyRegistry) -> None:
    await writer.flush()
    assert registry.batches == {}


@pytest.mark.parametrize("takes_all_the_same", [False, True])
async def test_a_batch_of_unknown_fate_counts_once(
    writer: UsageWriter, meter: Meter, registry: FlakyRegistry, takes_all_the_same: bool
) -> None:
    registry.is_down, registry.takes_all_the_same = True, takes_all_the_same
    for _ in range(3):
        use(meter, 5)
        with pytest.raises(RegistryUnavailable):
            await writer.flush()
    registry.is_down = False
    await writer.flush()
    await writer.flush()
    assert registry.num_tokens == 15


async def test_the_end_tells_how_much_is_lost(
    writer: UsageWriter, meter: Meter, registry: FlakyRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    registry.is_down = True
    use(meter, 5)
    with pytest.raises(RegistryUnavailable):
        await writer.flush()
    use(meter, 7)
    await writer.close()
    [told] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "2 requests with 12 generated tokens" in told and "the registry is down" in told


async def test_many_rows_are_written_in_several_batches(
    writer: UsageWriter, meter: Meter, registry: FlakyRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_writer, "MAX_BATCH_ROWS", 2)
    for tenant in "abcde":
        use(meter, 1, tenant)
    await writer.flush()
    assert [len(rows) for rows in registry.batches.values()] == [2, 2, 1]
    assert [number for _, number in registry.batches] == [1, 2, 3]


async def test_it_writes_by_itself_and_says_once_that_it_can_not(
    writer: UsageWriter,
    meter: Meter,
    registry: FlakyRegistry,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(usage_writer, "INTERVAL_S", 0.001)
    running = asyncio.create_task(writer.run())
    use(meter, 5)
    await until(lambda: registry.num_tokens == 5)
    registry.is_down, registry.takes_all_the_same = True, True
    with caplog.at_level(logging.WARNING):
        use(meter, 6)
        await until(lambda: registry.num_tokens == 11)
        await asyncio.sleep(0.02)
        registry.is_down = False
        use(meter, 7)
        await until(lambda: registry.num_tokens == 18)
    assert [record.getMessage() for record in caplog.records] == ["can't write usage yet: the registry is down"]
    running.cancel()
    await asyncio.wait([running])
