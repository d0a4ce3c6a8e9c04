"""A worker's description of its engine."""

from collections.abc import Callable
from pathlib import Path

import pytest

from punica_runner.engine_steps import _describe
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.engine import Engine
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
