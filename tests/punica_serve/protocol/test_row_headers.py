"""Row headers are left out while rows repeat, and restored at the other end."""

import msgspec
import pytest

from punica_serve.errors import ProtocolError
from punica_serve.protocol import Decoder, RowHeaderEncoder, RunnerToScheduler, StepReport, encode, with_row_headers


def report(*rows: tuple[int, int], epoch: int = 0) -> StepReport:
    """A report whose rows have these counters and positions."""
    return StepReport(
        gpu_uuid="gpu",
        epoch=epoch,
        step=1,
        applied_seq=1,
        assignments=tuple(counter for counter, _ in rows),
        positions=tuple(position for _, position in rows),
        token_ids=tuple(100 + position for _, position in rows),
        free_kv_pages=9,
        batch_size=len(rows),
        num_prefill_tokens=0,
        num_adapters=0,
        duration_s=0.25,
    )


#: Steps of one GPU, and whether each needs full row headers.
STEPS = [
    (report((1, 0), (2, 7)), True),
    (report((1, 1), (2, 8)), False),
    (report(), False),
    (report((1, 2), (2, 9)), False),
    (report((1, 3), (2, 10), (3, 0)), True),
    (report((1, 4), (2, 11), (3, 1)), False),
    (report((2, 12), (3, 2)), True),
    (report((2, 12), (3, 2)), True),
    (report((2, 13), (3, 4)), True),
    (report((2, 14), (3, 5), epoch=1), True),
    (report((3, 6), (3, 7), epoch=1), True),
    (report((3, 8), (3, 9), epoch=1), True),
]


def test_row_headers_are_sent_when_rows_change_and_known_always() -> None:
    encoder, decode = RowHeaderEncoder(), Decoder(RunnerToScheduler)
    newest_full: StepReport | None = None
    for whole, is_full in STEPS:
        sent = decode(encode(encoder.encode(whole)))
        assert bool(sent.assignments) == is_full == bool(sent.positions)
        assert with_row_headers(sent, newest_full) == whole
        newest_full = sent if is_full else newest_full


def test_row_headers_of_another_report_do_not_match() -> None:
    encoder = RowHeaderEncoder()
    newest_full, repeat = (encoder.encode(report((1, at), (2, at))) for at in (0, 1))
    assert repeat.num_repeats == 1
    assert with_row_headers(repeat, None) is None
    assert with_row_headers(repeat, report((1, 0))) is None
    assert with_row_headers(newest_full, None) == newest_full


@pytest.mark.parametrize("column", ["assignments", "positions"])
def test_a_report_both_with_and_without_row_headers_is_a_protocol_error(column: str) -> None:
    fields = {**msgspec.structs.asdict(report()), "num_repeats": 1, "token_ids": [7], column: [1]}
    with pytest.raises(ProtocolError, match="not of one length"):
        Decoder(RunnerToScheduler)(msgspec.msgpack.encode(["StepReport", *fields.values()]))
