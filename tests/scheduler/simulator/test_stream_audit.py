"""The audit lets whole streams pass and nothing else."""

from collections.abc import Iterable

import pytest

from punica_scheduler.simulator.stream_audit import StreamAudit
from punica_serve.protocol import Deliveries, Ending, FinishReason, WireError
from punica_serve.simulation.tokens import token_at

VOCAB_SIZE = 97


def _tokens(rows: Iterable[tuple[int, int]], *endings: Ending) -> Deliveries:
    rows = list(rows)
    return Deliveries(
        handles=tuple(stream for stream, _ in rows),
        positions=tuple(position for _, position in rows),
        token_ids=tuple(token_at(stream, position, VOCAB_SIZE) for stream, position in rows),
        endings=endings,
    )


def _end(stream: int, num_tokens: int, reason: FinishReason = "length") -> Ending:
    return Ending(stream, num_tokens, reason)


def test_whole_streams_pass() -> None:
    audit = StreamAudit([3, 2], VOCAB_SIZE)
    audit.take(_tokens([(0, 0), (1, 0)]), 1.0)
    audit.check()
    audit.take(_tokens([(0, 1), (1, 1)], _end(1, 2)), 2.0)
    audit.take(_tokens([(0, 2)], _end(0, 3)), 3.0)
    audit.finish()
    assert (audit.num_tokens, audit.num_ended, audit.failures) == (5, 2, {})
    assert audit.first_token_s.tolist() == [1.0, 1.0]
    assert audit.last_token_s.tolist() == [3.0, 2.0]
    assert audit.is_whole.tolist() == [True, True]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(0, 0), (0, 2)], "stream 0 has a gap or a repeat"),
        ([(0, 0), (0, 0)], "stream 0 has a gap or a repeat"),
        ([(0, 1), (0, 0)], "stream 0 has a gap or a repeat"),
        ([(1, 0), (1, 1), (1, 3)], "stream 1 has a gap or a repeat"),
    ],
)
def test_gaps_repeats_and_wrong_orders_are_found(rows: list[tuple[int, int]], message: str) -> None:
    audit = StreamAudit([3, 4], VOCAB_SIZE)
    audit.take(_tokens(rows), 1.0)
    with pytest.raises(AssertionError, match=message):
        audit.check()


def test_a_repeat_is_found_when_what_it_repeats_was_checked_long_ago() -> None:
    audit = StreamAudit([3], VOCAB_SIZE)
    audit.take(_tokens([(0, 0)]), 1.0)
    audit.check()
    audit.take(_tokens([(0, 0)]), 2.0)
    with pytest.raises(AssertionError, match="a gap or a repeat"):
        audit.check()


def test_a_token_of_another_stream_is_found() -> None:
    audit = StreamAudit([3, 3], VOCAB_SIZE)
    audit.take(Deliveries((0,), (0,), (token_at(1, 0, VOCAB_SIZE),)), 1.0)
    with pytest.raises(AssertionError, match="stream 0 has a token of another stream or position"):
        audit.check()


def test_early_ends_lost_tokens_and_missing_ends_are_found() -> None:
    for endings, message in [
        ((_end(0, 2),), "ended early, or late"),
        ((_end(0, 3),), "ended before its last token came"),
        ((), "never ended"),
    ]:
        audit = StreamAudit([3], VOCAB_SIZE)
        audit.take(_tokens([(0, 0), (0, 1)], *endings), 1.0)
        with pytest.raises(AssertionError, match=message):
            audit.finish()


def test_a_second_end_is_found() -> None:
    audit = StreamAudit([1], VOCAB_SIZE)
    audit.take(_tokens([(0, 0)], _end(0, 1)), 1.0)
    with pytest.raises(AssertionError, match="ended twice"):
        audit.take(Deliveries(endings=(_end(0, 1),)), 2.0)


def test_a_failed_stream_may_end_anywhere_and_its_reason_is_counted() -> None:
    audit = StreamAudit([3, 1], VOCAB_SIZE)
    failed = Ending(0, 1, "error", WireError("out_of_capacity", "the queue is full"))
    audit.take(_tokens([(0, 0), (1, 0)], failed, _end(1, 1)), 1.0)
    audit.finish()
    assert audit.failures == {"the queue is full": 1}
    assert audit.is_whole.tolist() == [False, True]
