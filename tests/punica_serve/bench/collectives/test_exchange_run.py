import pytest
from rich.progress import Progress

from punica_serve.bench.collectives.exchange_rank import ExchangeSettings
from punica_serve.bench.collectives.exchange_run import Found, exchange_table, one_shot_bytes, run_exchanges
from punica_serve.bench.collectives.exchange_ways import ON_CPU, ON_GPUS, parse_ways
from punica_serve.errors import ConfigError


def test_a_row_has_the_slowest_rank_of_each_way_and_the_fastest_way() -> None:
    settings = ExchangeSettings("cuda", 2, ("library", "one_shot"), (64, 128))
    found = [
        *(Found("library", 64, 9.0), Found("library", 64, 11.0), Found("one_shot", 64, 7.0)),
        *(Found("library", 128, 12.0), Found("one_shot", 128, "no symmetric memory")),
    ]
    table = exchange_table(settings, found)
    assert table.rows == [(64, 11.0, 7.0, "one_shot"), (128, 12.0, None, "library")]
    assert [column.key for column in table.columns] == ["bytes", "library_us", "one_shot_us", "fastest"]


@pytest.mark.parametrize(
    ("times", "largest"), [((5, 6, 9), 1024), ((5, 8, 6), 512), ((8, 6, 6), 0), ((5, None, 6), 512), ((5, 6, 6), 2048)]
)
def test_the_setting_is_the_size_up_to_which_one_shot_is_never_slower(
    times: tuple[float | None, ...], largest: int
) -> None:
    sizes = (512, 1024, 2048)
    settings = ExchangeSettings("cuda", 2, ("library", "one_shot_copy"), sizes)
    found = [Found("library", size, 7.0) for size in sizes]
    found += [Found("one_shot_copy", size, time) for size, time in zip(sizes, times, strict=True) if time is not None]
    assert one_shot_bytes(exchange_table(settings, found)) == largest


def test_each_device_has_its_ways() -> None:
    assert parse_ways(None, on_gpu=False) == ON_CPU
    assert parse_ways(None, on_gpu=True) == ON_GPUS
    assert parse_ways("multimem, library", on_gpu=True) == ("multimem", "library")
    with pytest.raises(ConfigError, match="`--ways` names 'one_shot'; CPUs have library"):
        parse_ways("one_shot", on_gpu=False)


@pytest.mark.slow
def test_two_processes_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    report = run_exchanges(ExchangeSettings("cpu", 2, ON_CPU, (256, 4096), num_replays=2), Progress(disable=True))
    assert not report.failures
    assert [row[0] for row in report.tables[0].rows] == [256, 4096]
    assert all(float(row[1] or 0) > 0 for row in report.tables[0].rows)
