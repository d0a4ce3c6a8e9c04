"""Loads on an idle engine, and a link that is slowed down."""

from typing import Any

import pytest
from msgspec.structs import replace

from punica_serve.bench.coldstart_series import link_rate
from punica_serve.bench.coldstart_series.link_rate import LoadTime, copies_for, measure_load
from punica_serve.bench.coldstart_series.shared_bytes import SharedBytes
from punica_serve.engine.adapters.copy_batch import CopyBatch
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.engine import Engine
from punica_serve.errors import RequestFailed


def test_every_adapter_is_loaded_and_the_rate_counts_its_bytes_once(engine: Engine, shared: SharedBytes) -> None:
    with shared.aliases("x", range(4)) as refs:
        load = measure_load(engine, refs.values(), 8, shared.num_bytes, 3)
        assert set(engine.resident_adapters) == {ref.digest for ref in refs.values()}
    assert load.seconds > 0 and load.gb_per_s == load.num_bytes / load.seconds / 1e9


def test_an_adapter_that_never_arrives_ends_the_measurement(
    engine: Engine, shared: SharedBytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_rate, "_DEADLINE_S", 0.05)
    lost = replace(shared.own[0], digest="lost", uri="/no/such/folder")
    with pytest.raises(RequestFailed, match=r"not on the device after 0\.05 s"):
        measure_load(engine, [lost], 8, shared.num_bytes, 1)


@pytest.mark.parametrize(("gb_per_s", "copies"), [(12, 4), (49, 1), (50, 1), (1000, 1), (3, 17)])
def test_copies_are_the_whole_number_that_comes_closest(gb_per_s: float, copies: int) -> None:
    assert copies_for(LoadTime(64, 50_000_000, 1, 1e-3), gb_per_s) == copies


def test_a_slower_link_copies_every_byte_so_often(
    engine: Engine, shared: SharedBytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    make = LoraPool._batch

    def counted(*args: Any) -> CopyBatch:
        batch = make(*args)
        counts.append(int(batch._sizes.sum()))
        return batch

    monkeypatch.setattr(LoraPool, "_batch", counted)
    with shared.aliases("x", range(2)) as refs:
        for number, copies in enumerate((1, 4)):
            engine.slow_copies(copies)
            measure_load(engine, [refs[number]], 8, shared.num_bytes, copies)
    assert counts == [shared.num_bytes, 4 * shared.num_bytes]
