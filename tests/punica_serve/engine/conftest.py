"""Engines over the tiny model."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from engine_fixtures import MakeAdapter, MakeEngine, MakeHarness
from loader_harness import LoaderHarness
from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine import device_runner, step_runner
from punica_serve.engine.adapters.host_loader import Fetch, no_fetch
from punica_serve.engine.batching.sequence import Sequence as EngineSequence
from punica_serve.engine.batching.step_plan import StepPlan
from punica_serve.engine.batching.step_rows import StepRows, build_rows
from punica_serve.engine.engine import Engine
from punica_serve.engine.sampler import SampledToken
from punica_serve.engine.step_runner import CpuRunner, FinishedStep
from punica_serve.protocol import AdapterRef, Request, SamplingParams
from punica_serve.store.packed_folder import PackedCache


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Models this small lose more by waiting for a second thread than they gain."""
    torch.set_num_threads(1)


@pytest.fixture
def make_engine(tiny_llama: Path) -> Iterator[MakeEngine]:
    """Engines on the tiny model in float32, without prefix caching; audited and closed at the end."""
    engines: list[Engine] = []

    def make(
        model: Path = tiny_llama,
        device: str = "cpu",
        fetch: Fetch = no_fetch,
        packed_cache: PackedCache | None = None,
        **settings: Any,
    ) -> Engine:
        defaults: dict[str, Any] = {"dtype": "float32", "page_size": 4, "num_kv_pages": 256, "num_lora_pages": 64}
        defaults["prefix_caching"] = False
        engines.append(Engine(EngineConfig(model=model, **{**defaults, **settings}), device, fetch, packed_cache))
        return engines[-1]

    yield make
    for engine in engines:
        engine.check_invariants()
        engine.close()


@pytest.fixture(scope="session")
def make_adapter(tiny_model: ModelConfig, tmp_path_factory: pytest.TempPathFactory) -> MakeAdapter:
    """Random adapters for the tiny model, strong enough to change what it says."""

    def make(rank: int = 8, seed: int = 0, **settings: Any) -> AdapterRef:
        folder = tmp_path_factory.mktemp("adapter")
        write_random_adapter(folder, tiny_model, rank=rank, seed=seed, **{"scale": 0.5, **settings})
        return read_adapter(folder, tiny_model)

    return make


@pytest.fixture(scope="session")
def load() -> Callable[[Engine, Iterable[AdapterRef]], None]:
    """Runs a request of one token on each adapter, so that all are there, for tests that want them in one step."""

    def load(engine: Engine, refs: Iterable[AdapterRef]) -> None:
        for number, ref in enumerate(refs):
            engine.add(Request(f"bring {number}", 0, (1,), SamplingParams(max_tokens=1, ignore_eos=True), ref))
        while engine.num_requests:
            if not engine.step().has_run:
                engine.wait(1.0)

    return load


@pytest.fixture
def make_harness(tiny_model: ModelConfig) -> Iterator[MakeHarness]:
    """Adapter loaders without engines; audited and closed at the end."""
    made: list[LoaderHarness] = []

    def make(num_pages: int = 4, host_bytes: int = 1 << 24) -> LoaderHarness:
        made.append(LoaderHarness(tiny_model, num_pages, host_bytes))
        return made[-1]

    yield make
    for harness in made:
        harness.loader.adapters.check_invariants()
        harness.loader.close()


class _LateStep(FinishedStep):
    was_read = False

    def sampled_tokens(self) -> Sequence[SampledToken | None]:
        assert not self.was_read
        self.was_read = True
        return super().sampled_tokens()


class _LateRunner(CpuRunner):
    """A CPU with overlap scheduling, as on a GPU: steps are launched before the host has the tokens of the one before.

    The newest tokens come from the runner's own record, also noise where logits were not finite.
    """

    overlap_scheduling = True
    _drawn: dict[EngineSequence, int] = {}  # noqa: RUF012  replaced, never changed
    _steps: tuple[_LateStep, ...] = ()

    def launch(self, plan: StepPlan) -> _LateStep:
        assert all(step.was_read for step in self._steps[:-1]), "two steps ahead"
        with patch.object(step_runner, "build_rows", self._build_rows):
            launched = super().launch(plan)
        sampled_tokens = launched.sampled_tokens()
        self._drawn = {
            sequence: sampled.token_id if sampled else 0
            for sequence, sampled in zip(plan.sampled, sampled_tokens, strict=True)
        }
        self._steps = (*self._steps[-1:], _LateStep(sampled_tokens, launched.phases_ns))
        return self._steps[-1]

    def _build_rows(self, plan: StepPlan, device: torch.device) -> StepRows:
        assert not any(chunk.sequence.num_in_flight for chunk in plan.prefills)
        batch = build_rows(plan, device)
        for row, sequence in enumerate(plan.decodes, batch.batch_len.num_prefill_rows):
            assert sequence.num_in_flight <= 1
            if sequence.num_in_flight:
                batch.token_ids[row] = self._drawn[sequence]
        return batch


@pytest.fixture
def overlapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines on a CPU launch each step before they know the tokens of the one before, as on a GPU."""
    monkeypatch.setattr(device_runner, "CpuRunner", _LateRunner)
