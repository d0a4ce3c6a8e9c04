"""Small simulated clusters."""

from collections.abc import Callable
from typing import Any

import pytest

from punica_serve.config.cluster import ClusterConfig, parse_config

MakeConfig = Callable[..., ClusterConfig]


@pytest.fixture
def make_config(tmp_path_factory: pytest.TempPathFactory) -> MakeConfig:
    """Two runners of two GPUs, small enough to run out of KvCache, under load for ten seconds."""

    def make(scheduler: dict[str, Any] | None = None, **arrivals: Any) -> ClusterConfig:
        document = {
            "engine": {
                "model": "shape:llama-2-7b",
                "max_batch_size": 8,
                "num_kv_pages": 100,
                "num_lora_pages": 12,
                "prefill_budget_tokens": 256,
            },
            "dummy_adapters": {"count": 8, "rank": 16},
            "runner": {"devices": ["simulated", "simulated"]},
            "scheduler": scheduler or {},
            "simulation": {
                "num_runners": 2,
                "interval_s": 1.0,
                "arrivals": {"rate": [[0, 4], [5, 14], [10, 4]], **arrivals},
            },
        }
        return parse_config(document, source="test", folder=tmp_path_factory.getbasetemp())

    return make
