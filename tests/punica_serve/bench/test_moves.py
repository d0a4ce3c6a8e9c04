"""`bench moves`, on the demo model."""

from pathlib import Path

import pytest
from rich.progress import Progress

from punica_serve.bench.moves import MoveSettings, _Counts, _Token, run
from punica_serve.bench.subject import Subject
from punica_serve.config.cluster import load_config
from punica_serve.protocol.request import TokenLogprobs

DEMO = Path(__file__).parents[3] / "configs" / "demo.yaml"


def test_a_backend_in_full_precision_goes_on_with_its_own_tokens() -> None:
    subject = Subject.of(load_config(DEMO).engine, "cpu")
    report = run(subject, MoveSettings(("triton", "auto"), 3, 10, 8, 2), Progress(disable=True))
    rows = report.tables[0].records
    assert [(row["source"], row["target"]) for row in rows] == [
        (source, target) for source in ("triton", "auto") for target in ("triton", "auto")
    ]
    for row in rows:
        assert (row["moves"], row["tokens"], row["changed"]) == (6, 3 * (6 + 3), 0)


def _tokens(*ids: int) -> list[_Token]:
    return [_Token(token, TokenLogprobs(-0.5, (token, 9), (-0.5, -0.6))) for token in ids]


def test_only_the_first_difference_of_an_answer_counts() -> None:
    counts = _Counts()
    counts.compare(_tokens(1, 2, 3, 4), _tokens(1, 9, 8, 7))
    counts.compare(_tokens(1, 2), _tokens(1, 2))
    assert (counts.moves, counts.tokens, counts.changed) == (2, 4, 1)
    assert counts.largest_gap == pytest.approx(0.1)


def test_a_token_that_was_not_likely_is_at_least_as_far_as_the_last_likely_one() -> None:
    counts = _Counts()
    counts.compare(_tokens(1), _tokens(5))
    assert counts.largest_gap == pytest.approx(0.1)
