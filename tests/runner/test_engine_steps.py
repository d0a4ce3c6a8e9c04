"""A worker's description of its engine, and the batch that its device has room for."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from punica_runner.engine_steps import _describe, _sized
from punica_runner.supervisor import engine_worker_command
from punica_runner.worker_options import WorkerOptions
from punica_serve.config.cluster import parse_config
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.engine import Engine
from punica_serve.engine.memory import auto_batch_memory
from punica_serve.process.module_command import module_command
from punica_serve.protocol import KvWindow


@pytest.mark.parametrize(("window", "told"), [(9, KvWindow(9, 32)), (None, None)])
def test_a_worker_tells_behind_which_window_it_gives_pages_back(
    window: int | None, told: KvWindow | None, make_model: Callable[..., Path]
) -> None:
    model = make_model("mistral", sliding_window=window)
    config = EngineConfig(model=model, num_kv_pages=16, num_lora_pages=16, prefill_budget_tokens=32)
    engine = Engine(config)
    info = _describe(engine, config, "cpu", "runner", 0)
    engine.close()
    assert (info.window, info.num_kv_pages) == (told, 16)


@pytest.mark.parametrize(
    ("fits", "expected", "logged"),
    [
        (128, (128, "target_step_ms"), "a step has up to 128 requests; more are limited by target_step_ms"),
        (64, (64, "memory"), "a step has up to 64 requests; more are limited by memory"),
    ],
)
def test_what_limits_the_batch_of_auto_is_logged_and_told(
    fits: int,
    expected: tuple[int, str],
    logged: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(auto_batch_memory, "largest_that_fits", lambda config, devices: fits)
    with caplog.at_level(logging.INFO):
        config, limit = _sized(_options("auto"))
    assert (config.max_batch_size, limit) == expected and caplog.messages == [logged]


def test_a_number_of_the_config_is_taken_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        config, limit = _sized(_options(48))
    assert (config.max_batch_size, limit) == (48, "max_batch_size") and not caplog.messages


def _options(max_batch_size: int | str) -> WorkerOptions:
    """The options of a worker's command line, as the supervisor writes it."""
    engine = {"model": "shape:llama-2-7b", "tokenizer": "demo:model", "max_batch_size": max_batch_size}
    document = {"engine": engine, "scheduler": {"profile": "h200-7b"}, "runner": {"devices": ["cuda:0"]}}
    command = engine_worker_command(parse_config(document, source="test", folder=Path()), "host", 0)
    return WorkerOptions.parse([*command[len(module_command("")) :], "--read-fd", "3", "--write-fd", "4"])
