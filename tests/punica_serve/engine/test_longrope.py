"""LongRoPE's tables are chosen by request, from what it may become, so that a move changes nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from engine_fixtures import MakeEngine
from punica_serve.engine.engine import Engine
from punica_serve.protocol import Request, SamplingParams

CONTEXT = 16
PROMPT = (5, 9, 60, 12, 3, 44)


@pytest.fixture(scope="module")
def phi(make_model: Callable[..., Path]) -> Path:
    factors = {"rope_type": "longrope", "short_factor": [1.0, 1.5, 1.1, 2.0], "long_factor": [3.0, 7.0, 9.0, 2.0]}
    sizes = {"max_position_embeddings": 64, "original_max_position_embeddings": CONTEXT}
    return make_model("phi3", rope_scaling=factors, **sizes)


def _answer(engine: Engine, max_tokens: int, generated: tuple[int, ...] = ()) -> tuple[int, ...]:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    engine.add(Request("r", 0, PROMPT, params, generated_ids=generated))
    tokens = list(generated)
    while engine.num_requests:
        tokens += [token.token_id for token in engine.step().tokens]
    return tuple(tokens)


def test_a_request_that_moves_keeps_its_tables(phi: Path, make_engine: MakeEngine) -> None:
    engine = make_engine(phi)
    answer = _answer(engine, 20)
    for num_generated in (1, 8, 12, 19):  # before, at and after the first context
        assert _answer(engine, 20, answer[:num_generated]) == answer


def test_a_short_request_reads_the_first_tables(phi: Path, make_engine: MakeEngine) -> None:
    """Both say the same where the answer may not leave the first context, and differ beyond."""
    engine = make_engine(phi)
    short, longer = _answer(engine, CONTEXT - len(PROMPT) + 1), _answer(engine, CONTEXT - len(PROMPT) + 2)
    assert short[:3] != longer[:3]
