"""A small engine and settings for runs of seconds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from punica_serve.bench.coldstart_series.series_catalogue import Series
from punica_serve.bench.coldstart_series.series_rows import ROWS
from punica_serve.bench.coldstart_series.series_settings import SeriesSettings
from punica_serve.bench.coldstart_series.shared_bytes import SharedBytes
from punica_serve.bench.random_adapters import fill_host_cache
from punica_serve.bench.subject import Subject
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.engine import Engine


@pytest.fixture(scope="session")
def subject(tiny_llama: Path) -> Subject:
    config = EngineConfig(
        model=tiny_llama,
        dtype="float32",
        num_kv_pages=256,
        num_lora_pages=4,
        cpu_threads=1,
        max_context=64,
        cpu_assist_processes=1,
    )
    return Subject.of(config, "cpu")


@pytest.fixture(scope="session")
def settings() -> SeriesSettings:
    return SeriesSettings(
        series=(
            Series("distinct", 8, 30.0),
            Series("serverless", 4, 30.0, num_adapters=12),
            Series("full", 8, None, num_in_flight=3),
        ),
        rows=tuple(ROWS.values()),
        seconds=0.2,
        batch_size=4,
        num_adapters=6,
    )


@pytest.fixture
def engine(subject: Subject) -> Iterator[Engine]:
    """Its LoRA pool holds four adapters of rank 8."""
    engine = Engine(subject.config, "cpu")
    yield engine
    engine.check_invariants()
    engine.close()


@pytest.fixture
def shared(engine: Engine, subject: Subject) -> SharedBytes:
    """Three adapters of rank 8 on q, k and v."""
    own = fill_host_cache(engine, 3, 8, subject.dtype, lambda: None, ("q_proj", "k_proj", "v_proj"))
    return SharedBytes(engine, own)
