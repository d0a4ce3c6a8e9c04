"""Runs an engine until nothing is left, by its steps."""

import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from punica_serve.engine.engine import Engine
from punica_serve.engine.step_output import StepOutput
from punica_serve.protocol import AdapterRef, Request, SamplingParams
from waits import DEADLINE_S


def request_of(
    name: str, prompt: Iterable[int] = (5, 6, 7), adapter: AdapterRef | None = None, arrival_ns: int = 0, **params: Any
) -> Request:
    """One of 8 greedy tokens, or with other sampling parameters."""
    sampling = SamplingParams(**{"max_tokens": 8, "ignore_eos": True, "seed": 1, **params})
    return Request(name, arrival_ns, tuple(prompt), sampling, adapter)


def run_all(engine: Engine, *requests: Request) -> dict[str, list[int]]:
    """Runs until nothing is left; the tokens of each request, checked to come once and in order."""
    for request in requests:
        engine.add(request)
    streams: dict[str, list[int]] = defaultdict(list)
    for output in steps_of(engine):
        for token in output.tokens:
            assert token.position == len(streams[token.request_id])
            streams[token.request_id].append(token.token_id)
    return streams


def steps_of(engine: Engine) -> Iterable[StepOutput]:
    """Steps until nothing is left, each of them audited."""
    deadline = time.monotonic() + DEADLINE_S
    while engine.num_requests:
        assert time.monotonic() < deadline, "the engine makes no progress"
        output = engine.step()
        engine.check_invariants()
        yield output
        if output.batch_size == 0:
            engine.wait(0.1)
