"""Prefills of a group of two GPUs that start while each GPU is still getting its share of their adapter."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cold_requests import NUM_LAYERS, cold_adapters, cold_request, run_requests
from punica_serve.config.engine_section import ColdStart, EngineConfig
from punica_serve.engine.batching.step_plan import StepPlan
from punica_serve.engine.engine import Engine
from punica_serve.engine.step_runner import LaunchedStep
from punica_serve.protocol import Request

NUM_GPUS = torch.cuda.device_count()

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(240),
    pytest.mark.skipif(NUM_GPUS < 2, reason=f"needs 2 GPUs, and there are {NUM_GPUS}"),
]

#: Copies of each byte: they take longer than a prefill.
_NUM_COPIES = 500


@pytest.mark.parametrize(
    ("mode", "cuda_graphs"), [("layerwise", True), ("layerwise", False), ("cpu_assist", True), ("auto", True)]
)
def test_layers_that_are_late_on_both_gpus_change_no_tokens(
    make_llama: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: ColdStart, cuda_graphs: bool
) -> None:
    model = make_llama(num_hidden_layers=NUM_LAYERS)
    refs = cold_adapters(model, tmp_path, 3)
    requests = [cold_request(f"{number}", refs[number], 10 + 9 * number, max_tokens=12) for number in range(3)]
    settings: dict[str, Any] = {"dtype": "float32", "page_size": 4, "num_kv_pages": 128, "num_lora_pages": 16}
    settings |= {"max_batch_size": 4, "prefill_budget_tokens": 16, "cuda_graphs": cuda_graphs}
    expected, _ = _run(EngineConfig(model=model, cold_start="wait", **settings), monkeypatch, requests)
    tokens, num_early = _run(EngineConfig(model=model, cold_start=mode, **settings), monkeypatch, requests)
    assert tokens == expected and num_early


def _run(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch, requests: list[Request]
) -> tuple[dict[str, list[int]], int]:
    """The tokens of two GPUs, request after request, and the steps that were early."""
    engine, num_early = Engine(config, "cuda:0,cuda:1"), 0
    tokens: dict[str, list[int]] = {}
    launch = engine._runner.launch

    def spy(plan: StepPlan) -> LaunchedStep:
        nonlocal num_early
        num_early += plan.is_early
        return launch(plan)

    try:
        monkeypatch.setattr(engine._runner, "launch", spy)
        engine.slow_copies(_NUM_COPIES)
        for request in requests:
            own, failures = run_requests(engine, request)
            assert not failures
            tokens |= own
        return tokens, num_early
    finally:
        engine.close()
