"""The benchmarks of kernels, layers and steps on a GPU, at sizes that take seconds: that they run, what they see."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.progress import Progress

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.base_model.rank import Rank
from punica_serve.bench.collectives.exchange_rank import ExchangeSettings
from punica_serve.bench.collectives.exchange_run import run_exchanges
from punica_serve.bench.collectives.exchange_ways import ON_GPUS
from punica_serve.bench.kernels import run as kernels
from punica_serve.bench.kernels.sections import Section
from punica_serve.bench.kernels.setting import KernelSettings
from punica_serve.bench.layer import run as layer
from punica_serve.bench.layer.layer_sizes import LayerSection
from punica_serve.bench.layer.setting import LayerSettings
from punica_serve.bench.overhead import run as overhead
from punica_serve.bench.overhead.sweep import OverheadSettings
from punica_serve.bench.subject import Subject
from punica_serve.config.engine_section import EngineConfig
from punica_serve.shapes import shape_folder, shape_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

SMALL = replace(shape_of("1b"), hidden_size=512, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=4)
MODEL: ModelConfig = replace(SMALL, num_key_value_heads=4, max_position_embeddings=256, name="small")


def test_kernels() -> None:
    settings = KernelSettings(
        hidden_size=1024, intermediate_size=2048, num_layers=4, batch_sizes=(1, 8), num_replays=2, num_prefill_rows=64
    )
    report = kernels.run(settings, tuple(Section), "cuda:0", Progress(disable=True))
    assert not report.failures and len(report.tables) == len(Section)
    # Two launches that overlap take little less than two empty ones, and nothing less than its bytes.
    (pair, *_) = report.tables
    assert all(float(record["times_floor"] or 0) > 0.6 for record in pair.records)


#: A layer's sizes but for its models.
LAYER_SIZES = LayerSettings(
    (),
    context_lengths=(64,),
    batch_sizes=(1, 4),
    projection_batch_sizes=(4,),
    part_batch_sizes=(4, 128),
    prompt_lengths=(96,),
    num_layers=2,
    num_replays=2,
)


def test_layer() -> None:
    report = layer.run(replace(LAYER_SIZES, models=(MODEL,)), tuple(LayerSection), "cuda:0", Progress(disable=True))
    assert not report.failures and len(report.tables) == len(LayerSection)
    parts = next(table for table in report.tables if table.name == "lora_parts")
    assert all(record["shrink_us"] and record["activation_us"] for record in parts.records)
    # From 128 decodes on the activation expands.
    assert [record["expand_gate_up_us"] is None for record in parts.records] == [False] * 4 + [True] * 2


def write_model(folder: Path) -> Path:
    config = json.loads((shape_folder("1b") / "config.json").read_text())
    fields = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    (folder / "config.json").write_text(json.dumps(config | {name: getattr(MODEL, name) for name in fields}))
    return folder


def test_a_trace_of_the_engine_shows_the_kernels_by_name(tmp_path: Path) -> None:
    config = EngineConfig(model=write_model(tmp_path), load_format="dummy", num_kv_pages=64)
    settings = OverheadSettings((1, 4), ranks=(8, 128), adapter_counts=(1, 4), batch_size=4, num_steps=4)
    report = overhead.run(Subject.of(config, "cuda:0"), settings, tmp_path, Progress(disable=True))
    assert not report.failures
    names = {str(record["kernel"]) for record in report.tables[1].records}
    assert {"sgmv_shrink", "sgmv_expand"} <= names


def test_one_rank_of_a_layer() -> None:
    settings = replace(LAYER_SIZES, models=(MODEL.shard(Rank(1, 2)),))
    report = layer.run(settings, tuple(LayerSection), "cuda:0", Progress(disable=True))
    assert not report.failures and len(report.tables) == len(LayerSection)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason=f"needs 2 GPUs, there are {torch.cuda.device_count()}")
def test_collectives() -> None:
    settings = ExchangeSettings("cuda", 2, ON_GPUS, (8192, 1 << 20), num_replays=2)
    assert not run_exchanges(settings, Progress(disable=True)).failures
