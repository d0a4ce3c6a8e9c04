"""Engines with and without the help of CPU processes, and what a step asks of them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch import Tensor

from assisted_engine import BeforeLayer, Exchanges, Resident, pool_of
from cold_requests import NUM_LAYERS, cold_adapters, evict, run_requests
from punica_serve.base_model.lora_layout import USUAL_LORA_RANK
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.cpu_assist import assist_profile
from punica_serve.engine.cpu_assist.torch_exchange import TorchExchange
from punica_serve.engine.engine import Engine
from punica_serve.protocol import AdapterRef, LoraGroup
from waits import DEADLINE_S, wait_for


@pytest.fixture(scope="module")
def model(make_llama: Callable[..., Path]) -> Path:
    return make_llama(num_hidden_layers=NUM_LAYERS)


@pytest.fixture(scope="module")
def refs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[AdapterRef]:
    return cold_adapters(model, tmp_path_factory.mktemp("adapters"), 2)


@pytest.fixture(scope="module")
def open_engine(model: Path) -> Iterator[Callable[[str], Engine]]:
    """One engine for each mode, since processes take seconds to start."""
    engines: dict[str, Engine] = {}

    def open_engine(mode: str) -> Engine:
        settings = {"dtype": "float32", "page_size": 4, "num_kv_pages": 256, "num_lora_pages": 64, "max_batch_size": 4}
        if mode not in engines:
            config = EngineConfig(
                model=model,
                cold_start=mode,
                prefill_budget_tokens=16,
                cpu_assist_processes=2,
                prefix_caching=False,
                lora_vocabulary=True,
                max_lora_rank=USUAL_LORA_RANK + 1,
                **settings,
            )
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(assist_profile, "_MAX_WAIT_S", DEADLINE_S)
                engines[mode] = Engine(config)
        return engines[mode]

    yield open_engine
    for engine in engines.values():
        engine.close()


@pytest.fixture
def engine(open_engine: Callable[[str], Engine], refs: list[AdapterRef]) -> Engine:
    """It has no adapter, and all of its processes are ready for a job."""
    engine = open_engine("cpu_assist")
    evict(engine, *refs)
    assert pool_of(engine).wait_until_ready(DEADLINE_S)
    wait_for(lambda: pool_of(engine).is_free, "the end of the last job")
    return engine


@pytest.fixture
def resident(open_engine: Callable[[str], Engine]) -> Resident:
    """Tokens from an engine that waits for all of an adapter."""
    return lambda *requests: run_requests(open_engine("wait"), *requests)


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> Exchanges:
    """Each layer and group of a step with help: the layer, and whether a process computed it."""
    seen: Exchanges = []
    run = TorchExchange.run

    def spy(exchange: TorchExchange, layer: int, group: LoraGroup, x: Tensor) -> Tensor | None:
        added = run(exchange, layer, group, x)
        seen.append((layer, added is not None))
        return added

    monkeypatch.setattr(TorchExchange, "run", spy)
    return seen


@pytest.fixture
def before_layer(monkeypatch: pytest.MonkeyPatch) -> BeforeLayer:
    def install(before: Callable[[int], None]) -> None:
        run = TorchExchange.run

        def spy(exchange: TorchExchange, layer: int, group: LoraGroup, x: Tensor) -> Tensor | None:
            if group == "qkv":
                before(layer)
            return run(exchange, layer, group, x)

        monkeypatch.setattr(TorchExchange, "run", spy)

    return install
