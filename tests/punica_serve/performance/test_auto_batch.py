"""`engine.max_batch_size: auto`: the size that a profile and the pools allow."""

import json
from pathlib import Path
from typing import Any

import pytest

from punica_serve.adapters.expected_rank import batch_of, engine_of
from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.cluster import ClusterConfig, parse_config
from punica_serve.config.engine_section import EngineConfig
from punica_serve.config.fields import AUTO_BATCH
from punica_serve.errors import ConfigError
from punica_serve.performance import auto_batch
from punica_serve.performance.auto_batch import AUTO_SIZES, largest_batch, step_ms
from punica_serve.performance.profile import load_profile
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.shapes import shape_folder

TIMES = StepTimeModel(load_profile("h200-7b"))
AUTO = {"model": "shape:llama-2-7b", "tokenizer": "demo:model", "load_format": "dummy", "max_batch_size": "auto"}


def config_of(profile: str | None = "h200-7b", **engine: Any) -> ClusterConfig:
    document = {"engine": {**AUTO, **engine}, "scheduler": {"profile": profile} if profile else {}}
    return parse_config(document, source="test", folder=Path())


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ({"num_lora_pages": "auto"}, (128, "target_step_ms")),
        ({"num_lora_pages": "auto", "target_step_ms": 50.0}, (256, "largest_size")),
        ({"num_lora_pages": "auto", "target_step_ms": 11.0}, (64, "target_step_ms")),
        ({"num_lora_pages": "auto", "target_step_ms": 1.0}, (32, "target_step_ms")),
        ({"num_lora_pages": "auto", "target_context": 2048}, (64, "target_step_ms")),
        ({"num_lora_pages": 128}, (64, "num_lora_pages")),
        ({"num_lora_pages": 128, "target_distinct": 0.5}, (128, "num_lora_pages")),
        ({"num_lora_pages": "auto", "num_kv_pages": 3000}, (64, "num_kv_pages")),
        ({"max_batch_size": 48}, (48, "max_batch_size")),
    ],
)
def test_the_tightest_limit_binds(engine: dict[str, Any], expected: tuple[int, str]) -> None:
    config = config_of(**engine)
    assert batch_of(config) == expected
    assert engine_of(config).max_batch_size == expected[0]


def test_the_models_config_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def reading(folder: Path) -> ModelConfig:
        read.append(folder)
        return read_model_config(folder)

    monkeypatch.setattr(auto_batch, "read_model_config", reading)
    config = config_of(num_lora_pages="auto", num_kv_pages=100_000, target_step_ms=1000.0)
    assert batch_of(config) == (256, "largest_size")
    assert read == [config.engine.model]


@pytest.mark.parametrize(("window", "size"), [(4096, 32), (512, 128)])
def test_requests_behind_windows_need_the_pages_of_a_window(tmp_path: Path, window: int, size: int) -> None:
    shape = json.loads((shape_folder("llama-2-7b") / "config.json").read_text())
    shape |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": window}
    (tmp_path / "config.json").write_text(json.dumps(shape | {"max_position_embeddings": 8192}))
    engine: dict[str, Any] = {
        "model": str(tmp_path),
        "target_context": 4000,
        "target_step_ms": 1000.0,
        "num_kv_pages": 8400,
    }
    assert batch_of(config_of(**engine, num_lora_pages="auto")) == (size, "num_kv_pages")


def test_the_step_of_the_size_keeps_the_target_and_that_of_the_next_does_not() -> None:
    engine = config_of(num_lora_pages="auto").engine
    size = largest_batch(engine, read_model_config(engine.model), TIMES).size
    larger = AUTO_SIZES[AUTO_SIZES.index(size) + 1]
    assert step_ms(size, engine, TIMES) <= engine.target_step_ms < step_ms(larger, engine, TIMES)


def test_adapters_make_steps_longer() -> None:
    engine = config_of().engine
    assert step_ms(64, engine.model_copy(update={"target_distinct": 0.0}), TIMES) < step_ms(64, engine, TIMES)


def test_without_a_profile_auto_is_refused() -> None:
    message = r"`engine\.max_batch_size: auto` needs to know how long steps take; set `scheduler\.profile`"
    with pytest.raises(ConfigError, match=message):
        batch_of(config_of(None))


def test_a_context_that_no_request_can_have_is_refused() -> None:
    assert batch_of(config_of(target_context=4096, num_lora_pages="auto")).size == 32
    message = r"`engine\.target_context` is 4097, but requests have 4096 tokens at most; lower it"
    with pytest.raises(ConfigError, match=message):
        batch_of(config_of(target_context=4097))
    with pytest.raises(ConfigError, match=r"is 512, but requests have 256 tokens at most"):
        batch_of(config_of(max_context=256))
    assert batch_of(config_of(max_context=256, max_batch_size=64)).size == 64


def test_auto_survives_being_written_and_read() -> None:
    engine = config_of().engine
    assert engine.max_batch_size == AUTO_BATCH and engine.most_requests == 256
    assert engine.model_dump(mode="json")["max_batch_size"] == "auto"
    assert EngineConfig.model_validate_json(engine.model_dump_json()) == engine
    assert engine.lora_pages == 512 and config_of(num_lora_pages=256).engine.lora_pages == 256


@pytest.mark.parametrize("size", [0, -1, "many", 1.5, True])
def test_other_values_are_refused(size: object) -> None:
    with pytest.raises(ConfigError, match=r"engine\.max_batch_size"):
        config_of(max_batch_size=size)
