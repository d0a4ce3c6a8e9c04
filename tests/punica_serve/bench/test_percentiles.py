from punica_serve.bench.percentiles import percentiles_ms


def test_seconds_become_percentiles_in_milliseconds() -> None:
    assert percentiles_ms([0.003, 0.001, 0.002], 0, 50, 100) == (1.0, 2.0, 3.0)
