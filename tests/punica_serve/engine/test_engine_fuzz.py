"""Random histories on tiny pools: whatever comes, leaves, starves or fails to load, each stream is as if it were alone.

Requests are added, cancelled at any moment, and added again with what they have generated, as a scheduler does that
moves them; adapters load slowly, or fail now and then. Books are audited after every step.
"""

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from punica_serve.adapters.adapter import Adapter
from punica_serve.adapters.folder import ReadBuffer, load_adapter
from punica_serve.engine import adapter_reader
from punica_serve.engine.engine import Engine, StepOutput
from punica_serve.model_config import ModelConfig
from punica_serve.protocol import AdapterRef, Request, SamplingParams

NUM_REQUESTS, MAX_TOKENS = 14, 10
DEADLINE_S = 30.0


@pytest.fixture(scope="module")
def requests(make_adapter: Callable[..., AdapterRef]) -> list[Request]:
    """Of mixed adapters, lengths and temperatures."""
    adapters = [None, *(make_adapter(rank=rank, seed=rank) for rank in (3, 8, 16, 17))]
    return [
        Request(
            f"r{number}",
            number,
            tuple((number * 13 + place * 5) % 96 + 1 for place in range(1 + (number * 7) % 20)),
            SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, temperature=float(number % 2), seed=number),
            adapters[number % 5],
        )
        for number in range(NUM_REQUESTS)
    ]


@pytest.fixture(scope="module")
def undisturbed(requests: list[Request], tiny_llama: Any) -> dict[str, list[int]]:
    from punica_serve.config import EngineConfig

    streams: dict[str, list[int]] = {}
    for request in requests:
        engine = Engine(EngineConfig(model=tiny_llama, dtype="float32", num_kv_pages=64, num_lora_pages=16))
        engine.add(request)
        streams[request.request_id] = []
        while engine.num_requests:
            output = engine.step()
            streams[request.request_id] += [token.token_id for token in output.tokens]
            if not output.batch_size:
                engine.wait(0.1)
        engine.close()
    return streams


class _Driver:
    """Plays the scheduler: adds, cancels and adds again at random, and collects the streams."""

    def __init__(self, engine: Engine, requests: list[Request], seed: int) -> None:
        self._engine = engine
        self._random = random.Random(seed)
        self._requests = {request.request_id: request for request in requests}
        self.streams: dict[str, list[int]] = {request_id: [] for request_id in self._requests}
        self._outside = set(self._requests)
        self._inside: set[str] = set()

    def run(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while self._outside or self._inside:
            assert time.monotonic() < deadline, f"no progress: {self._inside} inside, {self._outside} outside"
            self._move_some()
            output = self._engine.step()
            self._engine.check_invariants()
            self._account(output)
            if not output.batch_size:
                self._engine.wait(0.05)

    def _move_some(self) -> None:
        if self._outside and self._random.random() < 0.4:
            request_id = self._random.choice(sorted(self._outside))
            so_far = tuple(self.streams[request_id])
            self._engine.add(msgspec.structs.replace(self._requests[request_id], generated_ids=so_far))
            self._outside.remove(request_id)
            self._inside.add(request_id)
        if self._inside and self._random.random() < 0.1:
            request_id = self._random.choice(sorted(self._inside))
            self._engine.cancel(request_id)
            self._inside.remove(request_id)
            self._outside.add(request_id)

    def _account(self, output: StepOutput) -> None:
        for token in output.tokens:
            assert token.position == len(self.streams[token.request_id])
            self.streams[token.request_id].append(token.token_id)
        for request_id, _ in output.finished:
            self._inside.remove(request_id)
        for failure in output.failures:
            assert not failure.permanent
            self._inside.difference_update(failure.request_ids)
            self._outside.update(failure.request_ids)


@pytest.mark.parametrize("seed", range(12))
def test_random_histories(
    make_engine: Callable[..., Engine],
    requests: list[Request],
    undisturbed: dict[str, list[int]],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    chance, lock = random.Random(seed), threading.Lock()

    def moody_disk(ref: AdapterRef, model: ModelConfig, buffer: ReadBuffer) -> Adapter:
        with lock:
            mood = chance.random()
        time.sleep(mood * 0.01)
        if mood < 0.2:
            raise OSError("the disk is moody")
        return load_adapter(ref, model, buffer)

    monkeypatch.setattr(adapter_reader, "load_adapter", moody_disk)
    engine = make_engine(
        num_kv_pages=9 + 3 * (seed % 4),
        num_lora_pages=3 + seed % 3,
        max_batch_size=2 + seed % 5,
        prefill_budget_tokens=(3, 7, 64)[seed % 3],
        host_cache_bytes=(0, 1 << 20)[seed % 2],
    )
    driver = _Driver(engine, requests, seed)
    driver.run()
    assert driver.streams == undisturbed
    assert engine.num_free_kv_pages == engine.num_kv_pages
