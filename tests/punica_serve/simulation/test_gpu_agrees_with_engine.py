"""Step by step, a simulated GPU does the same as the engine: batches, pages, preemptions and ends."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.engine import Engine
from punica_serve.protocol import AdapterRef, Request, SamplingParams
from punica_serve.simulation.gpu import SimulatedGpu

PAGE_SIZE, BATCH_SIZE, BUDGET = 4, 5, 8
#: Few enough for preemptions; and enough to keep all that is known, since which of two requests that end in one step is
#: the older one is not told by the rules.
SCARCE, AMPLE = 24, 400
#: As scarce where each request holds the pages of a window and a chunk at most, which is four.
WINDOW, SCARCE_BEHIND_WINDOWS = 6, 12
NUM_REQUESTS = 30
#: A time at which all adapters have been loaded.
NOW_S = 1e6


class Outcome(NamedTuple):
    """The results that must agree. Token ids differ, so tokens are named by request and position."""

    tokens: set[tuple[int, int]]
    finished: set[int]
    starved: set[int]
    batch_size: int
    num_prefill_tokens: int
    num_adapters: int
    num_free_pages: int
    #: Shared pages; tokens looked up and found.
    sharing: tuple[int, ...]
    cached: set[tuple[int, int]]


@pytest.fixture(params=[1, 3])
def max_prefills(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture(scope="module")
def tiny_mistral(make_model: Callable[..., Path]) -> Path:
    """As large as the tiny Llama, with a window in each layer."""
    return make_model("mistral", sliding_window=WINDOW)


@pytest.fixture(params=[False, True], ids=["alone", "sharing"])
def is_sharing(request: pytest.FixtureRequest) -> bool:
    is_sharing: bool = request.param
    return is_sharing


@pytest.fixture
def engine(
    tiny_llama: Path, tiny_mistral: Path, max_prefills: int, is_sharing: bool, has_windows: bool
) -> Iterator[Engine]:
    scarce = SCARCE_BEHIND_WINDOWS if has_windows else SCARCE
    config = EngineConfig(
        model=tiny_mistral if has_windows else tiny_llama,
        dtype="float32",
        page_size=PAGE_SIZE,
        num_kv_pages=AMPLE if is_sharing else scarce,
        max_batch_size=BATCH_SIZE,
        prefill_budget_tokens=BUDGET,
        max_prefills=max_prefills,
        cpu_threads=1,
        num_lora_pages=2,
        prefix_caching=is_sharing,
    )
    engine = Engine(config)
    yield engine
    engine.check_invariants()
    engine.close()


@pytest.fixture(scope="module")
def adapters(tiny_model: ModelConfig, tmp_path_factory: pytest.TempPathFactory) -> list[AdapterRef]:
    """Two adapters, which fill the pool."""
    folders = [tmp_path_factory.mktemp("adapter") for _ in range(2)]
    for seed, folder in enumerate(folders):
        write_random_adapter(folder, tiny_model, rank=8, seed=seed)
    return [read_adapter(folder, tiny_model) for folder in folders]


@pytest.mark.parametrize(("has_windows", "seed"), [(False, 0), (True, 1)])
def test_every_step_is_the_engines(
    seed: int, engine: Engine, max_prefills: int, make_gpu: Callable[..., SimulatedGpu], adapters: list[AdapterRef]
) -> None:
    is_sharing = engine.prefix_caching is not None
    gpu = make_gpu(
        prefill_budget_tokens=BUDGET,
        page_size=PAGE_SIZE,
        num_kv_pages=engine.num_kv_pages,
        max_batch_size=BATCH_SIZE,
        num_lora_pages=2,
        max_prefills=max_prefills,
        prefix_caching=engine.prefix_caching,
        window=engine.kv_window,
    )
    _load(engine, gpu, adapters)
    rng = random.Random(seed)
    requests = [_request(number, rng, [None, *adapters]) for number in range(NUM_REQUESTS)]
    arrivals = rng.sample(requests, len(requests))  # a moved request arrives late and is served early
    num_steps = num_preempted = 0
    while arrivals or engine.num_requests:
        for _ in range(min(len(arrivals), rng.choice((0, 0, 1, 3)))):
            request = arrivals.pop()
            engine.add(request)
            gpu.add(request.arrival_ns, request, NOW_S)
        if rng.random() < 0.05:
            victim = rng.choice(requests)
            engine.cancel(victim.request_id)
            gpu.cancel(victim.arrival_ns)
        expected = _engine_step(engine)
        assert _simulated_step(gpu) == expected
        gpu.check_invariants()
        num_steps += 1
        num_preempted += len(expected.starved)
    assert (engine.prefix_tokens[1] > 0) == is_sharing
    assert is_sharing or num_preempted, "the case is too easy: no request ever lacked a page"
    assert gpu.num_requests == 0
    assert num_steps > NUM_REQUESTS


def _load(engine: Engine, gpu: SimulatedGpu, adapters: list[AdapterRef]) -> None:
    """Waits until all adapters are loaded, which the engine does at its own pace."""
    for number, ref in enumerate(adapters):
        request = Request(f"bring {number}", 0, (1,), SamplingParams(max_tokens=1, ignore_eos=True), ref)
        engine.add(request)
        gpu.add(-1 - number, request, now_s=0.0)
    while engine.num_requests:
        if not engine.step().has_run:
            engine.wait(1.0)
    while gpu.begin_step(NOW_S) is not None:
        gpu.end_step()
    assert gpu.resident == engine.resident_adapters


def _request(number: int, rng: random.Random, adapters: list[AdapterRef | None]) -> Request:
    """Prompts begin alike, but for every third. Answers of equal prompts differ, as the simulated ones do."""
    length = rng.choice((1, 2, 3, 4, 7, 8, 9, 20))
    prompt = tuple(place + 1 if number % 3 else rng.randrange(1, 97) for place in range(length))
    generated = tuple(rng.randrange(1, 97) for _ in range(rng.choice((0, 0, 3))))
    max_tokens = len(generated) + rng.choice((1, 2, 5, 12, 30))
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=number, temperature=2.0)
    return Request(f"r{number:02}", number, prompt, params, rng.choice(adapters), generated)


def _engine_step(engine: Engine) -> Outcome:
    output = engine.step()
    assert not output.failures
    return Outcome(
        {(int(token.request_id[1:]), token.position) for token in output.tokens},
        {int(request_id[1:]) for request_id, _ in output.finished},
        {int(request_id[1:]) for request_id in output.preempted},
        output.batch_size,
        output.num_prefill_tokens,
        output.num_adapters,
        engine.num_free_kv_pages,
        (engine.num_shared_kv_pages, *engine.prefix_tokens),
        {(int(request_id[1:]), num_tokens) for request_id, num_tokens in output.cached},
    )


def _simulated_step(gpu: SimulatedGpu) -> Outcome:
    step = None if gpu.begin_step(NOW_S) is None else gpu.end_step()
    sharing = (gpu.num_shared_kv_pages, gpu.prefixes.num_queries, gpu.prefixes.num_hits)
    if step is None:
        return Outcome(set(), set(), set(), 0, 0, 0, gpu.num_free_kv_pages, sharing, set())
    return Outcome(
        set(zip(step.keys, step.positions, strict=True)),
        {key for key, _ in step.finished},
        set(step.plan.preempted),
        step.plan.batch_size,
        step.plan.num_prefill_tokens,
        step.plan.num_adapters,
        gpu.num_free_kv_pages,
        sharing,
        set(step.cached),
    )
