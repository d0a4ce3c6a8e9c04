from dataclasses import fields

from punica_serve.protocol import Slo
from punica_serve.simulation.live.client import ReplayedStream
from punica_serve.simulation.live.comparison import ROWS, LiveFigures, failures_of, live_figures, ratio
from punica_serve.simulation.live.watch import Sample
from punica_serve.simulation.timeline import Timeline

TIMELINE = Timeline(
    interval_s=1.0,
    requests_per_s=[1.0, 1.0],
    tokens_per_s=[10.0, 30.0],
    queue_length=[0, 0],
    batch_sizes={"a": [8.0, 4.0], "b": [0.0, 0.2]},
    max_batch_size=8,
)


def test_figures_are_of_busy_gpus_and_of_what_was_counted_meanwhile() -> None:
    before = {"migrations": 5, "consolidations": 1}
    samples = [Sample(0.0, {}, 0, before), Sample(2.0, {}, 0, {"migrations": 7, "consolidations": 1})]
    streams = [
        ReplayedStream(0.0, 3, first_token_s=0.5, last_token_s=1.0, ended_s=1.0),
        ReplayedStream(1.0, 2, first_token_s=1.5, ended_s=None),
        ReplayedStream(1.0, 0, error="queue full", ended_s=1.2),
        ReplayedStream(1.0, 1, first_token_s=1.5, last_token_s=1.5, ended_s=1.5),
    ]
    slos = [Slo(time_per_token_s=0.2), Slo(), Slo(), Slo(time_per_token_s=0.2)]
    assert live_figures(TIMELINE, samples, streams, slos) == LiveFigures(
        tokens_per_s=20.0,
        highest_tokens_per_s=30.0,
        busy_share=0.5,
        busy_batch_size=6.0,
        first_token_p50_s=0.5,
        first_token_p99_s=0.5,
        time_per_token_mean_s=0.25,
        time_per_token_p99_s=0.25,
        promises_kept=0.5,
        migrations=2,
        consolidations=0,
        num_failed=2,
    )


def test_failures_are_counted_by_their_reasons() -> None:
    streams = [ReplayedStream(0.0, error="queue full", ended_s=1.0) for _ in range(2)]
    streams += [ReplayedStream(0.0), ReplayedStream(0.0, ended_s=1.0)]
    assert failures_of(streams) == {"queue full": 2, "it did not end within 600 s of the last request": 1}


def test_a_ratio_to_nothing_is_none() -> None:
    assert (ratio(3, 4), ratio(3, 0)) == ("0.75", "-")


def test_every_figure_has_a_row() -> None:
    assert list(ROWS) == [field.name for field in fields(LiveFigures)]
