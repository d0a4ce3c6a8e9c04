"""The whole benchmark on a tiny shape. Its figures are not judged here."""

from pathlib import Path

import pytest
from rich.progress import Progress

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.bench.layer import figure10
from punica_serve.bench.layer.layer_sizes import LayerSection
from punica_serve.bench.layer.projections import adapter_bytes_of_layer
from punica_serve.bench.layer.run import run
from punica_serve.bench.layer.setting import LayerBench, LayerSettings
from punica_serve.bench.report import TableData, save_figures, write_json
from punica_serve.shapes import shape_of


@pytest.fixture
def settings(tiny_model: ModelConfig) -> LayerSettings:
    return LayerSettings(
        models=(tiny_model,),
        context_lengths=(16, 40),
        batch_sizes=(1, 4),
        projection_batch_sizes=(4,),
        part_batch_sizes=(3,),
        prompt_lengths=(24,),
        num_beside_prefill=3,
        rank=8,
        num_layers=2,
        num_replays=1,
        dtype="float32",
    )


def test_it_measures_every_cell_and_draws(settings: LayerSettings, tmp_path: Path) -> None:
    report = run(settings, tuple(LayerSection), "cpu", Progress(disable=True))
    assert not report.failures
    projections, prefills, parts, figure = report.tables
    assert [record["population"] for record in projections.records] == ["distinct", "uniform", "skewed", "identical"]
    assert not any(record["goal_us"] or record["peer_us"] for record in projections.records)
    assert len(figure.records) == 2 * 2 * 5
    assert all(
        (record["added_us"], record["times_backbone"]) == (0, 1)
        for record in figure.records
        if record["population"] == "backbone"
    )
    assert [(record["prompt"], record["decodes"]) for record in prefills.records] == [(24, 3)]
    assert [(record["rows"], record["adapters"]) for record in parts.records] == [
        *(("prompt of 24", "one"), ("prompt of 24", "distinct")),
        *(("3 decodes", "one"), ("3 decodes", "distinct")),
    ]
    assert all(record["us"] and record["shrink_us"] is None for record in parts.records)
    write_json(report, tmp_path)
    assert [path.name for path in save_figures(report, tmp_path)] == [
        f"layer-{section}.png" for section in LayerSection
    ]


def test_a_part_that_fails_is_named_and_the_other_is_kept(
    settings: LayerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(bench: LayerBench) -> TableData:
        raise RuntimeError("out of memory")

    fail.__module__ = figure10.__name__
    monkeypatch.setattr(figure10, "measure", fail)
    sections = (LayerSection.FIGURE10, LayerSection.PROJECTIONS)
    report = run(settings, sections, "cpu", Progress(disable=True))
    assert list(report.failures) == ["punica_serve.bench.layer.figure10: out of memory"]
    assert [table.name for table in report.tables] == ["projections"]


def test_the_floor_counts_a_and_b_of_all_seven_projections() -> None:
    # q, k, v, o: 4096 + 4096 each; gate, up, down: 4096 + 11008 each.
    assert adapter_bytes_of_layer(shape_of("llama-2-7b"), 16, 2) == 16 * 2 * (4 * 8192 + 3 * 15104)
