"""Loads with and without shared prefixes on a tiny model, and the host's time."""

import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from punica_serve.bench.prefix_caching import PatternResult, PrefixCachingSettings, run
from punica_serve.bench.prefix_caching_report import hit_first_token_s, make_report
from punica_serve.bench.prefix_host_time import measure_host_time
from punica_serve.bench.report import leave
from punica_serve.bench.subject import Subject
from punica_serve.config.engine_section import EngineConfig

SETTINGS = PrefixCachingSettings(
    num_groups=2,
    group_size=3,
    prefix_tokens=40,
    own_tokens=5,
    output_tokens=4,
    gap_s=0.0,
    batch_size=8,
    rank=4,
    rounds=1,
)


@pytest.fixture(scope="module")
def subject(tiny_llama: Path) -> Subject:
    config = EngineConfig(
        model=tiny_llama, dtype="float32", page_size=4, num_kv_pages=200, num_lora_pages=8, cpu_threads=1
    )
    return Subject.of(config, "cpu")


@pytest.fixture(scope="module")
def rows(subject: Subject) -> tuple[PatternResult, ...]:
    return run(subject, SETTINGS, Progress(disable=True))


def test_a_group_computes_its_prefix_once(rows: tuple[PatternResult, ...]) -> None:
    for row in rows[:-1]:
        (off,), (on,) = row.off, row.on
        assert off.num_prefill_tokens == 6 * 45 and not off.cached
        assert sorted(on.cached.values()) == [40] * 4
        assert on.num_prefill_tokens == 6 * 45 - 4 * 40
        assert on.num_tokens == off.num_tokens == 6 * 4


def test_prompts_of_their_own_find_nothing(rows: tuple[PatternResult, ...]) -> None:
    (off,), (on,) = rows[-1].off, rows[-1].on
    assert rows[-1].load.name == "no reuse"
    assert off.num_prefill_tokens == on.num_prefill_tokens == 6 * 45 and not on.cached


def test_the_same_requests_are_compared(rows: tuple[PatternResult, ...]) -> None:
    hits_s = hit_first_token_s(rows[2])
    assert hits_s is not None and min(hits_s) > 0
    assert hit_first_token_s(rows[-1]) is None, "nobody has found anything"


def test_it_leaves_tables_and_json(subject: Subject, rows: tuple[PatternResult, ...], tmp_path: Path) -> None:
    host = measure_host_time(num_known_pages=300, batch_size=2, prompt_tokens=50)
    assert host.num_known_pages >= 288
    # Known pages add about nothing to a step, so noise may make it negative.
    assert abs(host.step_us) < host.request_us
    assert 0 < host.same_groups_us < host.changed_groups_us
    leave(make_report(subject, SETTINGS, rows, host), tmp_path, Console(width=200))
    document = json.loads((tmp_path / "prefix-caching.json").read_text())
    no_reuse = document["tables"]["ratios"][-1]
    assert no_reuse["load"] == "no reuse" and no_reuse["hit_first_token"] is None
    assert [row["full_prefills"] for row in document["tables"]["loads"]][:2] == [6, 2]
