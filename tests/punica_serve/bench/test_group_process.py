"""Parts of a benchmark on a group run in processes of their own."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from rich.progress import Progress

from parts_of_benchmarks import ended_part, pid_of_part, refused_part
from punica_serve.bench.group_process import measure_in_process
from punica_serve.bench.subject import Subject
from punica_serve.config.engine_section import EngineConfig
from punica_serve.errors import ConfigError, RequestFailed


@pytest.fixture
def subject(tiny_llama: Path) -> Subject:
    return Subject.of(EngineConfig(model=tiny_llama), "cpu")


def test_a_device_is_measured_in_this_process(subject: Subject) -> None:
    assert measure_in_process(subject, pid_of_part, Progress(disable=True)) == os.getpid()


@pytest.mark.slow
def test_each_part_of_a_group_is_measured_in_a_process_of_its_own(subject: Subject) -> None:
    group = replace(subject, group="cpu,cpu")
    others = {measure_in_process(group, pid_of_part, Progress(disable=True)) for _ in range(2)}
    assert len(others) == 2 and os.getpid() not in others


def test_errors_come_out_as_they_are_and_so_does_an_end(subject: Subject) -> None:
    group = replace(subject, group="cpu,cpu")
    with pytest.raises(ConfigError, match="no such memory") as refused:
        measure_in_process(group, refused_part, Progress(disable=True))
    assert refused.value.param == "engine.num_lora_pages"
    with pytest.raises(RequestFailed, match="has ended; its output says why"):
        measure_in_process(group, partial(ended_part, 3), Progress(disable=True))
