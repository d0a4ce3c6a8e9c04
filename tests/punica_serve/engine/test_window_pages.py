"""Pages behind sliding windows: the same tokens whether they are given back or kept, and nobody reads what was."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine_fixtures import MakeEngine
from punica_serve.base_model.model_spec import ModelSpec
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.engine import Engine
from punica_serve.paging.prefix_cache import PageHolder
from punica_serve.protocol import Request, SamplingParams

PAGE_SIZE, WINDOW, BUDGET = 4, 9, 16
#: Pages of a window and a chunk.
MOST_PAGES = 7


@pytest.fixture(scope="module")
def mistral(make_model: Callable[..., Path]) -> Path:
    return make_model("mistral", sliding_window=WINDOW, max_position_embeddings=256)


def _requests() -> list[Request]:
    """Contexts of up to 22 windows, the longest first; the later ones begin like the earlier ones."""
    prompts = [(130, 3), (60, 60), (150, 50), (61, 4), (9, 30), *[(1, 40)] * 6]
    return [
        Request(
            f"r{number}",
            number,
            (*(place * place % 97 for place in range(1, num_prompt)), number),
            SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        )
        for number, (num_prompt, max_tokens) in enumerate(prompts)
    ]


def _run(engine: Engine, requests: list[Request]) -> tuple[dict[str, list[int]], int]:
    """Their tokens, and how many preemptions there were."""
    streams: dict[str, list[int]] = {request.request_id: [] for request in requests}
    num_preempted = 0
    for request in requests:
        engine.add(request)
    while engine.num_requests:
        output = engine.step()
        assert not output.failures
        for token in output.tokens:
            streams[token.request_id].append(token.token_id)
        num_preempted += len(output.preempted)
        engine.check_invariants()
    assert engine.num_free_kv_pages == engine.num_kv_pages
    return streams, num_preempted


@pytest.fixture(scope="module")
def kept(mistral: Path) -> dict[str, list[int]]:
    """The tokens where no page is given back before its request ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelSpec, "page_window", None)
        engine = Engine(EngineConfig(model=mistral, dtype="float32", num_kv_pages=256, num_lora_pages=16))
        streams, _ = _run(engine, _requests())
        engine.close()
    return streams


def _poison(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pages that are given back become NaN at once; the list of their numbers grows."""
    cache, poisoned = engine._cache, list[int]()
    give_back = cache.prefixes.give_back

    def give_back_and_poison(holder: PageHolder) -> None:
        first = holder.num_released
        give_back(holder)
        pages = holder.pages[first : holder.num_released]
        if cache.pool.is_cuda:
            torch.cuda.synchronize()  # the step in flight may read them; a later one writes to them in its order
        cache.pool[torch.tensor(pages, dtype=torch.int64)] = torch.nan
        poisoned.extend(pages)

    monkeypatch.setattr(cache.prefixes, "give_back", give_back_and_poison)
    return poisoned


@pytest.mark.parametrize(
    ("mode", "num_pages"),
    [
        ("plain", MOST_PAGES),
        *[("overlapped", num_pages) for num_pages in (MOST_PAGES, 16, 256)],
        *[pytest.param("gpu", num_pages, marks=pytest.mark.gpu) for num_pages in (MOST_PAGES, 16, 256)],
    ],
)
def test_no_row_reads_a_page_that_was_given_back(
    make_engine: MakeEngine,
    mistral: Path,
    kept: dict[str, list[int]],
    num_pages: int,
    mode: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The smallest pool holds one request's window, far from a whole request, and refuses nothing."""
    if mode == "overlapped":
        request.getfixturevalue("overlapped")
    device = "cuda" if mode == "gpu" else "cpu"
    engine = make_engine(mistral, device, num_kv_pages=num_pages, prefill_budget_tokens=BUDGET)
    poisoned = _poison(engine, monkeypatch)
    assert engine.longest_request == 256
    streams, num_preempted = _run(engine, _requests())
    assert streams == kept
    assert len(poisoned) > 100
    assert bool(num_preempted) == (num_pages < 256), "the last six grow at the same time"


@pytest.mark.parametrize("num_pages", [MOST_PAGES, 40, 256])
def test_pages_are_found_again_by_their_contents(
    make_engine: MakeEngine, mistral: Path, kept: dict[str, list[int]], num_pages: int
) -> None:
    """A second round of the same requests, of which most pages are gone where the pool is small."""
    engine = make_engine(mistral, num_kv_pages=num_pages, prefill_budget_tokens=BUDGET, prefix_caching=True)
    assert _run(engine, _requests())[0] == kept
    num_found = engine.prefix_tokens[1]
    assert _run(engine, _requests())[0] == kept
    assert num_pages < 256 or engine.prefix_tokens[1] - num_found > 300


def test_a_request_that_moves_goes_on_in_the_pages_of_a_window(
    make_engine: MakeEngine, mistral: Path, kept: dict[str, list[int]]
) -> None:
    """It is cancelled within its answer, and prefilled with it elsewhere."""
    request = _requests()[2]
    engine = make_engine(mistral, num_kv_pages=MOST_PAGES, prefill_budget_tokens=BUDGET)
    for place in (1, 17, 49):
        moved = Request("moved", 0, request.prompt_ids, request.sampling, generated_ids=tuple(kept["r2"][:place]))
        assert _run(engine, [moved])[0]["moved"] == kept["r2"][place:]
