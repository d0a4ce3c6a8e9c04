"""Runs requests in an engine to their ends."""

from collections.abc import Sequence

from punica_serve.engine.engine import Engine
from punica_serve.protocol import Request


def tokens_of(engine: Engine, requests: Sequence[Request], *, steps_apart: int = 0) -> dict[str, list[int]]:
    """The tokens of each request. ``steps_apart``: the steps between two arrivals."""
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.add(request)
        for _ in range(steps_apart):
            add_step(engine, tokens)
    while engine.num_requests:
        add_step(engine, tokens)
    engine.check_invariants()
    return tokens


def add_step(engine: Engine, tokens: dict[str, list[int]]) -> None:
    """One step, whose tokens are added; where none can run yet, a wait until one may."""
    output = engine.step()
    assert not output.failures
    for token in output.tokens:
        assert token.position == len(tokens[token.request_id])
        tokens[token.request_id].append(token.token_id)
    if not output.has_run:
        engine.wait(10.0)
