"""Random histories on tiny pools: each stream is as if it were alone, whatever is added, preempted or fails to load.

Requests are added, cancelled at any moment, and added again with their generated tokens, as a scheduler does that moves
them. Adapters load slowly, or fail now and then, from the disk, from a store, or between two parts of their copy to the
device; their packed forms are damaged now and then; they are prefetched, pinned and evicted at any moment. The
accounting is audited after every step. All of it runs on a plain CPU, on a CPU with overlap scheduling, and on a GPU,
which always overlaps.
"""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from punica_serve.adapters.folder import UnverifiedAdapter, begin_load
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.adapters import chunk_job
from punica_serve.engine.adapters import reader as adapter_reader
from punica_serve.engine.adapters.copy_batch import CopyBatch
from punica_serve.engine.adapters.packed_chunk import Chunk, PackedFileInvalid, read_checked
from punica_serve.engine.adapters.range_reader import RangeReader
from punica_serve.engine.engine import Engine
from punica_serve.engine.step_output import StepOutput
from punica_serve.errors import StoreUnavailable
from punica_serve.protocol import AdapterRef, Request, SamplingParams
from punica_serve.store.packed_folder import PackedCache
from waits import DEADLINE_S

NUM_REQUESTS, MAX_TOKENS = 16, 10

#: Options of a request; each is a case of its own where the newest token comes late.
WISHES: tuple[dict[str, Any], ...] = (
    {},
    {"stop_token_ids": tuple(range(3, 97, 8))},
    {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2},
    {"max_tokens": 1},
    {"stop_token_ids": tuple(range(1, 97, 3)), "min_tokens": 4},
    {"max_tokens": 2, "logprobs": 2},
    {"stop_token_ids": tuple(range(0, 97, 5)), "presence_penalty": 1.0, "logprobs": 0},
)

#: Tokens of each request, and why it ended.
Answers = dict[str, tuple[list[int], str]]


@pytest.fixture(scope="module")
def requests(make_adapter: Callable[..., AdapterRef]) -> list[Request]:
    """Requests of mixed adapters, lengths, temperatures and options."""
    adapters = [None, *(make_adapter(rank=rank, seed=rank) for rank in (3, 8, 16, 17))]
    common: dict[str, Any] = {"max_tokens": MAX_TOKENS, "ignore_eos": True}
    return [
        Request(
            f"r{number}",
            number,
            tuple((number * 13 + place * 5) % 96 + 1 for place in range(1 + (number * 7) % 20)),
            SamplingParams(
                **{**common, "temperature": float(number % 2), "seed": number, **WISHES[number % len(WISHES)]}
            ),
            adapters[number % 5],
        )
        for number in range(NUM_REQUESTS)
    ]


@pytest.fixture(scope="module")
def undisturbed(requests: list[Request], tiny_llama: Path) -> Answers:
    """Each request alone, on a CPU."""
    answers: Answers = {}
    for request in requests:
        engine = Engine(EngineConfig(model=tiny_llama, dtype="float32", num_kv_pages=64, num_lora_pages=16))
        driver = _Driver(engine, [request], seed=0, unrest=0.0)
        driver.run()
        answers |= driver.answers
        engine.close()
    assert {reason for _, reason in answers.values()} == {"stop", "length"}
    return answers


class _Driver:
    """Plays the scheduler: adds, cancels and adds again at random, and collects the answers."""

    def __init__(self, engine: Engine, requests: list[Request], seed: int, unrest: float = 0.1) -> None:
        self._engine = engine
        self._random = random.Random(seed)
        self._unrest = unrest
        self._requests = {request.request_id: request for request in requests}
        self._streams: dict[str, list[int]] = {request_id: [] for request_id in self._requests}
        self.answers: Answers = {}
        self._outside = set(self._requests)
        self._inside: set[str] = set()
        self._adapters = [request.adapter for request in requests if request.adapter is not None]

    def run(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while self._outside or self._inside:
            assert time.monotonic() < deadline, f"no progress: {self._inside} inside, {self._outside} outside"
            self._move_some()
            output = self._engine.step()
            self._engine.check_invariants()
            self._account(output)
            if not output.has_run:
                self._engine.wait(0.05)

    def _move_some(self) -> None:
        if self._outside and self._random.random() < 0.4:
            self._add(self._random.choice(sorted(self._outside)))
        if self._inside and self._random.random() < self._unrest:
            request_id = self._random.choice(sorted(self._inside))
            self._engine.cancel(request_id)
            self._inside.remove(request_id)
            self._outside.add(request_id)
            if self._random.random() < 0.5:
                self._add(request_id)
        if self._adapters and self._random.random() < self._unrest:
            ref = self._random.choice(self._adapters)
            if self._random.random() < 0.5:
                self._engine.evict(ref.digest)
            else:
                self._engine.prefetch(ref, pin=self._random.choice((None, True, False)))

    def evict_all(self) -> None:
        """Nothing of any adapter stays, not even of one that is on its way for nobody."""
        deadline = time.monotonic() + DEADLINE_S
        for ref in self._adapters:
            self._engine.evict(ref.digest)
        loader = self._engine._loader
        # Adapters being copied are not resident yet, and are dropped on arrival.
        while loader.adapters or not loader._host.is_idle:
            assert time.monotonic() < deadline, "an adapter stays"
            self._engine.wait(0.05)
            self._engine.step()
        self._engine.check_invariants()
        packed = loader._host._reader._packed_store
        if packed is not None:  # what is being written is held
            packed._writer.submit(lambda: None).result(DEADLINE_S)
        assert self._engine.host_cache.used_bytes == 0

    def _add(self, request_id: str) -> None:
        so_far = tuple(self._streams[request_id])
        self._engine.add(msgspec.structs.replace(self._requests[request_id], generated_ids=so_far))
        self._outside.remove(request_id)
        self._inside.add(request_id)

    def _account(self, output: StepOutput) -> None:
        for token in output.tokens:
            assert token.request_id in self._inside
            assert token.position == len(self._streams[token.request_id])
            self._streams[token.request_id].append(token.token_id)
        for request_id, reason in output.finished:
            self._inside.remove(request_id)
            self.answers[request_id] = (self._streams[request_id], reason)
        for failure in output.failures:
            assert not failure.permanent
            self._inside.difference_update(failure.request_ids)
            self._outside.update(failure.request_ids)


class _Moody:
    """Makes the disk, the store and the link slow, and fails them now and then. Threads share it."""

    def __init__(self, seed: int, folders: dict[str, str]) -> None:
        """``folders``: where the store's adapters really are."""
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self._folders = folders

    def _mood(self, longest_s: float) -> float:
        """Takes its time, and returns a number from 0 to 1."""
        with self._lock:
            mood = self._chance.random()
        time.sleep(mood * longest_s)
        return mood

    def disk(self, ref: AdapterRef, *rest: Any) -> UnverifiedAdapter:
        if self._mood(0.01) < 0.2:
            raise OSError("the disk is moody")
        return begin_load(ref, *rest)

    def store(self, ref: AdapterRef) -> Path:
        mood = self._mood(0.01)
        if mood < 0.2:
            raise StoreUnavailable("the store is moody")
        return Path("dropped meanwhile" if mood < 0.4 else self._folders[ref.digest])

    def chunk(self, file: RangeReader, chunk: Chunk, *piece: Any) -> float:
        if self._mood(0.002) < 0.01:
            raise PackedFileInvalid("the disk is moody")
        return read_checked(file, chunk, *piece)

    def link(self, copy: Callable[..., None], *, times: int = 1) -> Callable[..., None]:
        """``times``: so many times as often used as the others, and so much better at it."""

        def copy_or_fail(batch: CopyBatch, *rest: Any) -> None:
            if self._mood(0.005 / times) < 0.05 / times:
                raise RuntimeError("the link is moody")
            copy(batch, *rest)

        return copy_or_fail


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 8))])
@pytest.mark.parametrize("device", ["cpu", "overlapped", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_random_histories(
    make_engine: Callable[..., Engine],
    requests: list[Request],
    undisturbed: Answers,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    device: str,
    seed: int,
) -> None:
    if device == "overlapped":
        request.getfixturevalue("overlapped")
    requests, folders = _half_remote(requests)
    moody = _Moody(seed, folders)
    whole, part = ("queue", "queue_part") if device == "cuda" else ("copy", "copy_part")
    monkeypatch.setattr(CopyBatch, whole, moody.link(getattr(CopyBatch, whole)))
    monkeypatch.setattr(CopyBatch, part, moody.link(getattr(CopyBatch, part), times=8))
    monkeypatch.setattr(chunk_job, "read_checked", moody.chunk)
    monkeypatch.setattr(adapter_reader, "begin_load", moody.disk)
    store = ThreadPoolExecutor(4)
    engine = make_engine(
        fetch=lambda ref: store.submit(moody.store, ref),
        packed_cache=PackedCache(tmp_path, 1 << 30) if seed % 4 else None,
        device="cuda" if device == "cuda" else "cpu",
        num_kv_pages=9 + 3 * (seed % 4),
        num_lora_pages=3 + seed % 3,
        max_batch_size=2 + seed % 5,
        prefill_budget_tokens=(3, 7, 64)[seed % 3],
        max_prefills=(1, 4)[seed // 3 % 2],
        host_cache_bytes=(0, 1 << 20)[seed % 2],
        prefix_caching=seed % 4 < 2,
    )
    driver = _Driver(engine, requests, seed)
    driver.run()
    assert driver.answers == undisturbed
    assert engine.num_free_kv_pages == engine.num_kv_pages
    driver.evict_all()
    store.shutdown()


def _half_remote(requests: list[Request]) -> tuple[list[Request], dict[str, str]]:
    """The requests, whose adapters of even ranks are in a store, and where these really are."""
    folders: dict[str, str] = {}
    moved = []
    for request in requests:
        ref = request.adapter
        if ref is not None and not max(ref.ranks.values()) % 2:
            folders[ref.digest] = ref.uri
            ref = msgspec.structs.replace(ref, uri=f"moody://{ref.digest}")
        moved.append(msgspec.structs.replace(request, adapter=ref))
    return moved, folders
