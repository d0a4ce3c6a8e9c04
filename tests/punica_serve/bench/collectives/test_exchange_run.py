from importlib.util import find_spec
from pathlib import Path

import pytest
from rich.progress import Progress

from punica_serve.bench.collectives import exchange_run
from punica_serve.bench.collectives.exchange_rank import ExchangeSettings
from punica_serve.bench.collectives.exchange_run import (
    ExchangeResult,
    exchange_tables,
    measured_group,
    run_exchanges,
    write_times,
)
from punica_serve.bench.collectives.exchange_ways import FLASHINFER, ON_CPU, ON_GPUS, parse_ways
from punica_serve.engine.ranks.exchange_choice import ExchangeTime, read_times
from punica_serve.errors import ConfigError


def test_a_row_has_the_slowest_rank_of_each_way_and_the_fastest_way() -> None:
    settings = ExchangeSettings("cuda", 2, ("nccl", "one_shot"), (64, 128))
    found = [
        *(ExchangeResult("nccl", 64, 9.0), ExchangeResult("nccl", 64, 11.0), ExchangeResult("one_shot", 64, 7.0)),
        *(ExchangeResult("nccl", 128, 12.0), ExchangeResult("one_shot", 128, "no symmetric memory")),
    ]
    (table,) = exchange_tables(settings, found)
    assert table.rows == [(64, 11.0, 7.0, "one_shot"), (128, 12.0, None, "nccl")]
    assert [column.key for column in table.columns] == ["bytes", "nccl_us", "one_shot_us", "fastest"]


def test_the_engine_reads_the_file_that_is_written(tmp_path: Path) -> None:
    settings = ExchangeSettings("cuda", 2, ("nccl", "two_shot", "multimem"), (64, 128, 256))
    found = [
        ExchangeResult("nccl", 64, 9.04),
        ExchangeResult("nccl", 128, 12.0),
        ExchangeResult("two_shot", 64, 7.26),
        ExchangeResult("multimem", 64, 1.0),
    ]
    group = measured_group("H100", 2, exchange_tables(settings, found))
    assert group is not None
    write_times(group, tmp_path / "times.yaml")
    read = read_times(tmp_path / "times.yaml").groups
    assert read == (group,)
    assert read[0].times == (ExchangeTime(bytes=64, nccl=9.0, two_shot=7.3), ExchangeTime(bytes=128, nccl=12.0))


def test_nothing_is_read_from_a_table_without_nccl() -> None:
    settings = ExchangeSettings("cuda", 2, ("nccl", "two_shot"), (64,))
    assert measured_group("H100", 2, exchange_tables(settings, [ExchangeResult("two_shot", 64, 7.0)])) is None


def test_each_device_has_its_ways() -> None:
    assert parse_ways(None, on_gpu=False) == ON_CPU
    missing = set() if find_spec("flashinfer") else {FLASHINFER}
    assert set(parse_ways(None, on_gpu=True)) == {*ON_GPUS} - missing
    assert parse_ways("flashinfer", on_gpu=True) == (FLASHINFER,)
    assert parse_ways("multimem, nccl", on_gpu=True) == ("multimem", "nccl")
    with pytest.raises(ConfigError, match="`--ways` names 'one_shot'; CPUs have gloo"):
        parse_ways("one_shot", on_gpu=False)


def test_a_layers_exchange_is_compared_with_the_fastest_of_three_kernels(tmp_path: Path) -> None:
    ways = ("nccl", "one_shot_norm", "two_shot_norm", "fused", "flashinfer")
    settings = ExchangeSettings("cuda", 2, ways, (64, 128))
    found = [
        *(ExchangeResult("nccl", size, 12.0) for size in settings.sizes),
        *(
            ExchangeResult("one_shot_norm", 64, 15.0),
            ExchangeResult("one_shot_norm", 128, 21.0),
            ExchangeResult("two_shot_norm", 128, 20.0),
        ),
        *(
            ExchangeResult("fused", 64, 10.0),
            ExchangeResult("fused", 64, 11.0),
            ExchangeResult("fused", 128, "no symmetric memory"),
            ExchangeResult("flashinfer", 128, 13.0),
        ),
    ]
    sums, layers = exchange_tables(settings, found)
    assert sums.rows == [(64, 12.0, "nccl"), (128, 12.0, "nccl")]
    assert layers.rows == [(64, 15.0, None, 11.0, None, "fused"), (128, 21.0, 20.0, None, 13.0, "flashinfer")]
    group = measured_group("H100", 2, [sums, layers])
    assert group is not None
    write_times(group, tmp_path / "times.yaml")
    assert read_times(tmp_path / "times.yaml").groups[0].times == (
        ExchangeTime(bytes=64, nccl=12.0, fused=11.0, unfused=15.0),
        ExchangeTime(bytes=128, nccl=12.0, flashinfer=13.0, unfused=20.0),
    )


@pytest.mark.slow
def test_two_processes_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")

    def fail() -> None:
        raise RuntimeError("no nvcc")

    monkeypatch.setattr(exchange_run, "is_compiled", lambda: False)
    monkeypatch.setattr(exchange_run, "compile_module", fail)
    ways = (*ON_CPU, "nccl_norm", FLASHINFER)  # nccl_norm's sums are gloo's here
    report = run_exchanges(ExchangeSettings("cpu", 2, ways, (256, 40960), num_replays=2), Progress(disable=True))
    assert report.failures == ["flashinfer: no nvcc"]
    for table in report.tables:
        assert [row[0] for row in table.rows] == [256, 40960]
        assert all(float(row[1] or 0) > 0 for row in table.rows)
    assert len(report.tables) == 2
