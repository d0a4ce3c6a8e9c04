"""The process that matches strangers' expressions: what it refuses, and whom that holds up meanwhile."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from processor_time import processor_s
from punica_serve.adapters import pattern_process
from punica_serve.adapters.base_modules import BaseModules
from punica_serve.adapters.matching import match_targets
from punica_serve.adapters.pattern_process import match_in_process
from punica_serve.adapters.pattern_worker import MAX_CPU_S
from punica_serve.adapters.peft_config import MAX_NAMES, PeftConfig
from punica_serve.errors import AdapterRejected, StoreUnavailable

BLOCKS = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), "self_attn"),
    **dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "mlp"),
}
SEVEN = tuple(BLOCKS)
#: Llama 3.1 405B has as many.
NUM_LAYERS = 126
LARGE, SMALL = BaseModules(NUM_LAYERS, BLOCKS), BaseModules(2, BLOCKS)

#: Each would hold an interpreter for hours.
CATASTROPHES: list[dict[str, Any]] = [
    {"target_modules": r"(.|..)*!"},
    {"target_modules": r"(.*)*!"},
    {"target_modules": r"(?:\w|\w\w|\.)*(a|aa)*b"},
    {"target_modules": SEVEN, "exclude_modules": r"(\w+\.?)+!"},
    {"target_modules": SEVEN, "rank_pattern": {"q_proj": 4, r"(.|..)*!": 4}},
    {"target_modules": SEVEN, "alpha_pattern": {"q_proj": 4.0, r"([a-z_.0-9]+)+!": 4.0}},
    {"target_modules": SEVEN, "layers_to_transform": 0, "layers_pattern": r"(\w|\w\w|\.)*!"},
]


def _worker_with(limit: str) -> tuple[str, ...]:
    """The worker's command with another limit."""
    program = f"from punica_serve.adapters import pattern_worker as w; w.{limit}; w.main()"
    return sys.executable, "-P", "-c", program


@pytest.mark.parametrize("fields", CATASTROPHES, ids=lambda fields: list(fields)[-1])
def test_an_expression_that_takes_too_long_is_refused_by_name(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pattern_process, "_COMMAND", _worker_with("MAX_CPU_S = 0.3"))
    started_s = time.monotonic()
    with pytest.raises(AdapterRejected, match="takes too long to match; name modules in it") as caught:
        match_in_process(PeftConfig(**fields), LARGE)
    assert caught.value.param == list(fields)[-1]
    assert time.monotonic() - started_s < 20 * MAX_CPU_S


def test_many_alternatives_are_soon_matched() -> None:
    """Each used to be compared with each other before anything was matched."""
    names = "|".join(f"n{number:04d}" for number in range(1500))
    before_s = processor_s()
    matches = match_in_process(PeftConfig(target_modules=f".*q_proj|{names}"), LARGE)
    assert processor_s() - before_s < 1.0
    assert len(matches.targets) == NUM_LAYERS


def test_as_many_patterns_as_there_may_be_are_matched_in_time() -> None:
    in_vain = [f"nowhere.{number}" for number in range(MAX_NAMES - 1)]
    keys = [*in_vain, "q_proj"]
    config = PeftConfig(rank_pattern=dict.fromkeys(keys, 4), alpha_pattern=dict.fromkeys(keys, 2.0))
    matches = match_in_process(config, LARGE)
    assert {(target.module, target.rank, target.alpha) for target in matches.targets} == {
        ("q_proj", 4, 2.0),
        ("v_proj", 8, 8.0),
    }


def test_a_rank_for_every_module_of_a_large_model_is_matched_in_time() -> None:
    paths = [path for _, _, path in LARGE.linear()]
    ranks = {path: number % 64 + 1 for number, path in enumerate(paths)}
    matches = match_in_process(PeftConfig(target_modules=SEVEN, rank_pattern=ranks), LARGE)
    assert {target.path: target.rank for target in matches.targets} == ranks


@pytest.mark.parametrize(
    "fields",
    [
        {"target_modules": r".*\.(q|k|v)_proj", "r": 5, "use_rslora": True},
        {"target_modules": ("q_proj", "nowhere"), "rank_pattern": {"layers.1.*": 3}, "lora_alpha": 0.1},
        {"target_modules": ("up_proj",), "layers_to_transform": (1, 9), "layers_pattern": ("h", "layers")},
        {"target_modules": "all-linear", "exclude_modules": ".*mlp.*", "alpha_pattern": {"k_proj": 1 / 3}},
        {"target_modules": "(q_proj"},
        {"target_modules": "lm_head"},
        {"target_modules": ".*q_proj", "rank_pattern": {"q_proj": 1000}},
    ],
)
def test_says_what_matching_in_this_process_says(fields: dict[str, Any]) -> None:
    def outcome(match: Callable[..., Any]) -> Any:
        try:
            return asdict(match(PeftConfig(**fields), SMALL))
        except AdapterRejected as error:
            return error.message, error.param

    assert outcome(match_in_process) == outcome(match_targets)


def test_other_threads_go_on_meanwhile() -> None:
    """The event loop of a frontend is such a thread: nothing holds the interpreter. The limit is the worker's own."""
    num_ticks, ended = 0, threading.Event()

    def tick() -> None:
        nonlocal num_ticks
        while not ended.wait(0.001):
            num_ticks += 1

    ticking = threading.Thread(target=tick)
    before_s = time.thread_time()  # not the clock: a busy machine stops threads too
    ticking.start()
    try:
        with pytest.raises(AdapterRejected, match="takes too long"):
            match_in_process(PeftConfig(target_modules=r"(.|..)*!"), LARGE)
    finally:
        ended.set()
        ticking.join()
    assert num_ticks > 100
    assert time.thread_time() - before_s < MAX_CPU_S / 4, "the matching is another process's"


def test_an_expression_that_takes_too_much_memory_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_process, "_COMMAND", _worker_with("MAX_MEMORY_BYTES = 4 << 20"))
    keys = [f"{number:x<2000}" for number in range(600)]
    with pytest.raises(AdapterRejected, match="`rank_pattern` takes too much memory to match") as caught:
        match_in_process(PeftConfig(rank_pattern=dict.fromkeys(keys, 4)), LARGE)
    assert caught.value.param == "rank_pattern"


def test_a_worker_beyond_the_deadline_is_killed_and_its_field_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than the first deadlines to start it, and to come to that field."""
    monkeypatch.setattr(pattern_process, "_COMMAND", _worker_with("MAX_CPU_S = 1e3"))
    deadlines_s, param = iter((0.6, 2.4, 9.6, 38.4)), None
    while param != "exclude_modules":
        monkeypatch.setattr(pattern_process, "MAX_WALL_S", next(deadlines_s))
        with pytest.raises((AdapterRejected, StoreUnavailable)) as caught:
            match_in_process(PeftConfig(target_modules=SEVEN, exclude_modules=r"(.|..)*!"), LARGE)
        param = caught.value.param
    assert "`exclude_modules` takes too long" in caught.value.message


@pytest.mark.parametrize(
    "command",
    [
        (sys.executable, "-c", "raise SystemExit(3)"),
        (sys.executable, "-c", "import os; os.kill(os.getpid(), 15)"),
        ("/nowhere/python",),
    ],
)
def test_a_process_that_fails_is_not_the_adapters_fault(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr(pattern_process, "_COMMAND", command)
    with pytest.raises(StoreUnavailable, match="try again later"):
        match_in_process(PeftConfig(target_modules=".*q_proj"), SMALL)


def test_the_worker_starts_without_what_it_does_not_need() -> None:
    """It starts for every adapter with a pattern: each of these would double the time that takes."""
    program = "import sys; import punica_serve.adapters.pattern_worker; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True).stdout
    assert not {"numpy", "torch", "pydantic", "asyncio", "logging"} & set(loaded.split())


def test_the_worker_gets_no_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PUNICA_CLUSTER_TOKEN", "secret")
    tell = f"import os, pathlib; pathlib.Path({str(tmp_path / 'names')!r}).write_text(' '.join(os.environ)); exit(3)"
    monkeypatch.setattr(pattern_process, "_COMMAND", (sys.executable, "-c", tell))
    with pytest.raises(StoreUnavailable):
        match_in_process(PeftConfig(target_modules=".*q_proj"), SMALL)
    names = (tmp_path / "names").read_text().split()
    assert set(names) <= {"PYTHONPATH", "LD_LIBRARY_PATH", "LC_CTYPE"}, "Python itself sets the last"
