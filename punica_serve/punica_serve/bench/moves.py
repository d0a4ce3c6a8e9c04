"""Runs `bench moves`: how often a request that moves between attention backends goes on with other tokens.

In half precision two kernels round differently, so where two tokens are almost equally likely the other one may win.
A moved request is prefilled with the answer that it has, as after a move between GPUs; the control moves it to an
engine of the same backend, which also prefills what the first one decoded.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import numpy as np
from rich.progress import Progress

from punica_serve.bench.driver import step
from punica_serve.bench.report import Column, Report, TableData, Value, machine
from punica_serve.bench.subject import Subject
from punica_serve.engine.engine import Engine
from punica_serve.protocol import Request, SamplingParams
from punica_serve.protocol.request import TokenLogprobs

_SEED = 20240508
#: The most likely tokens that are compared where two answers part.
_NUM_LOGPROBS = 8
COLUMNS = (
    Column("source", "from"),
    Column("target", "to"),
    Column("moves", "moves", ",d"),
    Column("tokens", "tokens behind them", ",d"),
    Column("changed", "answers that part", ",d"),
    Column("per_thousand", "per 1,000 tokens", ".2f"),
    Column("largest_gap", "largest gap, nats", ".4f"),
)


@dataclass(frozen=True, slots=True)
class MoveSettings:
    backends: tuple[str, ...]
    num_requests: int
    num_prompt_tokens: int
    num_answer_tokens: int
    #: Moves of each request, evenly spread over its answer.
    num_moves: int


@dataclass(frozen=True, slots=True)
class _Token:
    token_id: int
    logprobs: TokenLogprobs


_Answer = list[_Token]


@dataclass(slots=True)
class _Counts:
    """The moves from one backend to another."""

    moves: int = 0
    #: Those that are compared: up to where an answer parts, since behind it all differ.
    tokens: int = 0
    changed: int = 0
    #: By how much the one answer's token was likelier than the other's, where they part.
    largest_gap: float = 0.0

    def compare(self, expected: Sequence[_Token], got: Sequence[_Token]) -> None:
        self.moves += 1
        for old, new in zip(expected, got, strict=True):
            self.tokens += 1
            if old.token_id != new.token_id:
                self.changed += 1
                self.largest_gap = max(self.largest_gap, _gap(old.logprobs, new.token_id))
                return


def run(subject: Subject, settings: MoveSettings, progress: Progress) -> Report:
    """Raises ConfigError if an engine can't be made, RequestFailed if a request fails."""
    pairs = [(source, target) for source in settings.backends for target in settings.backends]
    task = progress.add_task("moves", total=len(settings.backends) + len(pairs) * settings.num_moves)
    rows: list[tuple[Value, ...]] = []
    with _engines(subject, settings) as engines:
        prompts = _prompts(settings, subject.model.vocab_size)
        answers: dict[str, list[_Answer]] = {}
        for backend, engine in engines.items():
            answers[backend] = _run(engine, [(prompt, ()) for prompt in prompts], settings)
            progress.advance(task)
        for source, target in pairs:
            counts = _Counts()
            for place in _places(settings):
                _move(engines[target], prompts, answers[source], place, settings, counts)
                progress.advance(task)
            rows.append((source, target, *_values(counts)))
    title = f"Requests of {settings.num_prompt_tokens:,} prompt tokens that move within their answers"
    table = TableData("moves", title, COLUMNS, rows)
    return Report("moves", machine(f"{subject.device}"), _told(subject, settings), [table])


def _told(subject: Subject, settings: MoveSettings) -> dict[str, Value]:
    return {"model": subject.model.name, **asdict(settings)}


def _values(counts: _Counts) -> tuple[Value, ...]:
    rate = 1e3 * counts.changed / counts.tokens
    return counts.moves, counts.tokens, counts.changed, rate, counts.largest_gap


def _move(
    engine: Engine,
    prompts: Sequence[tuple[int, ...]],
    answers: Sequence[_Answer],
    place: int,
    settings: MoveSettings,
    counts: _Counts,
) -> None:
    """Moves all requests behind ``place`` tokens of their answers."""
    moved = [
        (prompt, tuple(token.token_id for token in answer[:place]))
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    for answer, rest in zip(answers, _run(engine, moved, settings), strict=True):
        counts.compare(answer[place:], rest)


def _places(settings: MoveSettings) -> list[int]:
    return [settings.num_answer_tokens * nth // (settings.num_moves + 1) for nth in range(1, settings.num_moves + 1)]


def _prompts(settings: MoveSettings, vocab_size: int) -> list[tuple[int, ...]]:
    drawn = np.random.default_rng(_SEED).integers(vocab_size, size=(settings.num_requests, settings.num_prompt_tokens))
    return [tuple(row) for row in drawn.tolist()]


def _gap(logprobs: TokenLogprobs, other: int) -> float:
    """Nats by which the chosen token was likelier than ``other``; a lower bound if that is none of the likeliest."""
    known = dict(zip(logprobs.top_ids, logprobs.top_logprobs, strict=True))
    return logprobs.logprob - known.get(other, min(logprobs.top_logprobs))


@contextmanager
def _engines(subject: Subject, settings: MoveSettings) -> Iterator[dict[str, Engine]]:
    """An engine for each backend, beside each other on the device."""
    engines: dict[str, Engine] = {}
    context, page_size = settings.num_prompt_tokens + settings.num_answer_tokens, subject.config.page_size
    try:
        for backend in settings.backends:
            changes = {
                "attention": backend,
                "num_kv_pages": subject.config.max_batch_size * (context // page_size + 2),
                "max_context": context,
            }
            engines[backend] = Engine(subject.config.model_copy(update=changes), f"{subject.device}")
        yield engines
    finally:
        for engine in engines.values():
            engine.close()


def _run(
    engine: Engine, requests: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], settings: MoveSettings
) -> list[_Answer]:
    """The tokens that follow each (prompt, answer so far), greedily."""
    params = SamplingParams(max_tokens=settings.num_answer_tokens, ignore_eos=True, logprobs=_NUM_LOGPROBS)
    answers: dict[str, _Answer] = {}
    for number, (prompt, generated) in enumerate(requests):
        answers[f"{number}"] = []
        engine.add(Request(f"{number}", number, prompt, params, generated_ids=generated))
    while engine.num_requests:
        for token in step(engine).tokens:
            assert token.logprobs is not None
            answers[token.request_id].append(_Token(token.token_id, token.logprobs))
    return list(answers.values())
