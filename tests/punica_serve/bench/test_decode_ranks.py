"""The report over the ranks of batches, from made-up samples."""

from pathlib import Path

import pytest
from rich.console import Console

from punica_serve.bench.decode_ranks import DecodeRanksSettings, average_rank, make_report
from punica_serve.bench.report import leave
from punica_serve.bench.subject import Subject
from punica_serve.config.engine_section import EngineConfig
from punica_serve.performance.lora_fit import LoraSample


def _sample(num_rows: int, sum_ranks: int, max_rank: int) -> LoraSample:
    return LoraSample("mixed", num_rows, num_rows, sum_ranks, max_rank, 4, 1.0, 1.5)


@pytest.fixture(scope="module")
def subject(tiny_llama: Path) -> Subject:
    return Subject.of(EngineConfig(model=tiny_llama, dtype="float32"), "cpu")


def test_each_batch_is_a_row_with_its_ranks_and_a_point_of_the_picture(subject: Subject, tmp_path: Path) -> None:
    samples = [_sample(4, 136, 64), _sample(1, 8, 8), _sample(4, 64, 32)]
    report = make_report(subject, DecodeRanksSettings(), samples)
    (table,) = report.tables
    found = [(row["rows"], row["max_rank"], row["average_rank"]) for row in table.records]
    assert found == [(1, 8, 8.0), (4, 32, 16.0), (4, 64, 34.0)]
    assert average_rank(samples[0]) == 34.0
    written = {path.name for path in leave(report, tmp_path, Console(quiet=True))}
    assert written == {"decode-ranks.json", "decode-ranks.png"}
