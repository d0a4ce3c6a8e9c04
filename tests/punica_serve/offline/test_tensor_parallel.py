"""A group of two ranks on a CPU: the tokens of one device, equal accounts, and an end without leftovers."""

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from process_tree import alive, command_line, descendants
from punica_serve import LLM
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine import group_start
from punica_serve.engine.engine import Engine
from punica_serve.engine.launch_lead import LaunchMargin
from punica_serve.engine.ranks.group_settings import GroupSettings
from punica_serve.engine.ranks.rank_loss import RankLost
from punica_serve.errors import ConfigError, ModelRejected
from punica_serve.offline.llm import Answer
from punica_serve.protocol import AdapterRef, Request, SamplingParams
from rank_pids import rank_pids

_DEADLINE_S = 30.0


def _params(number: int) -> SamplingParams:
    """Greedy and sampled rows, with filters, penalties and log-probabilities among them."""
    return SamplingParams(
        max_tokens=4 + number % 5,
        temperature=0.5 * (number % 3),
        seed=number,
        top_k=5 * (number % 2),
        repetition_penalty=1.3 if number % 4 == 0 else 1.0,
        logprobs=2 if number % 5 == 0 else None,
        ignore_eos=number % 2 == 0,
    )


def _answers(llm: LLM, names: list[str]) -> list[Answer]:
    """Base rows and rows of adapters; the pools hold only some of them at a time. Twice, so that adapters come back."""
    prompts = [f"{number}" * (1 + number % 7) for number in range(14)]
    lora_ids = [([*names, None])[number % (len(names) + 1)] for number in range(14)]
    params = [_params(number) for number in range(14)]
    answers = llm.generate(prompts, lora_ids, params, progress=False)
    return answers + llm.generate(prompts, lora_ids[::-1], params, progress=False)


def test_two_ranks_say_what_one_device_says_and_end_together(
    tiny_llama: Path, make_adapter: Callable[..., AdapterRef], capfd: pytest.CaptureFixture[str]
) -> None:
    adapters = {f"a{rank}": make_adapter(rank=rank, seed=rank).uri for rank in (4, 8, 12, 24)}
    settings: dict[str, Any] = {
        "dtype": "float32",
        "page_size": 4,
        "num_kv_pages": 24,
        "num_lora_pages": 4,
        "cpu_threads": 1,
    }
    with LLM(tiny_llama, adapters, **settings) as llm:
        expected = _answers(llm, list(adapters))
    with LLM(tiny_llama, adapters, tensor_parallel=2, prefill_budget_tokens=8, prefix_caching=True, **settings) as llm:
        answers = _answers(llm, list(adapters))
        llm.engine.check_invariants()
        lags_us = llm.engine.launch_lags_us()
        assert min(map(len, lags_us.values())) > 10
        launched_apart = [sum(abs(lag_us) >= 1e6 for lag_us in lags) for lags in lags_us.values()]
        assert max(launched_apart) <= 2, "the ranks launched the same steps, whatever stalls came between"
        margin = llm.engine._group.with_ranks(LaunchMargin(0.0, early_s=60.0))
        assert margin is not None and 0.0 < margin.ranks_early_s[1] < 120.0, "the rank launched the newest step"
        assert capfd.readouterr().err == ""
        assert {"imports", "other ranks", "joining", "weights", "graphs"} <= llm.engine.start_times.phases.keys()
        (pid,) = rank_pids(llm.engine)
        os.kill(pid, signal.SIGKILL)
        started_s = time.monotonic()
        with pytest.raises(RankLost, match=r"rank 1 \(cpu\) died: killed by SIGKILL"):
            while time.monotonic() < started_s + _DEADLINE_S:
                llm.generate("1", params=SamplingParams(max_tokens=1), progress=False)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    assert not any(answer.error for answer in answers)
    for answer, other in zip(answers, expected, strict=True):
        ours, theirs = ([entry.logprob for entry in each.logprobs] for each in (answer, other))
        assert ours == pytest.approx(theirs, abs=2e-4)


def test_a_frozen_rank_ends_a_step_as_soon_as_it_is_found(tiny_llama: Path) -> None:
    """Long before an exchange would give up."""
    settings = GroupSettings()
    engine = Engine(EngineConfig(model=tiny_llama, cpu_threads=1), "cpu,cpu", others=settings)
    try:
        os.kill(rank_pids(engine)[0], signal.SIGSTOP)
        assert engine._group._group is not None
        watch = engine._group._group._watch
        assert watch._silence_timeout_s == settings.silence_timeout_s
        watch._interval_s, watch._silence_timeout_s = 0.2, 1.0  # only now: a rank that starts may be silent for longer
        started_s = time.monotonic()
        engine.add(Request("r", 0, (1, 2), SamplingParams(max_tokens=1)))
        with pytest.raises(RankLost, match=r"rank 1 \(cpu\) has answered no ping for 1 s"):
            engine.step()
        assert time.monotonic() < started_s + settings.exchange_timeout_s / 4
    finally:
        engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("divide_lora_from", [None, 8])
def test_four_processes_say_what_one_says(
    tiny_llama: Path, make_adapter: Callable[..., AdapterRef], divide_lora_from: int | None
) -> None:
    """Ranks share key-value heads, and the pools hold only some of the adapters at a time."""
    adapters = {f"a{rank}": make_adapter(rank=rank, seed=rank).uri for rank in (4, 8, 24, 64)}
    settings: dict[str, Any] = {"dtype": "float32", "page_size": 4, "num_kv_pages": 24, "num_lora_pages": 8}
    with LLM(tiny_llama, adapters, **settings) as llm:
        expected = _answers(llm, list(adapters))
    settings |= {"cpu_threads": 1, "divide_lora_from": divide_lora_from}
    with LLM(tiny_llama, adapters, tensor_parallel=4, prefill_budget_tokens=8, **settings) as llm:
        answers = _answers(llm, list(adapters))
        assert llm.engine.share.divides_lora == (divide_lora_from is not None)
        llm.engine.check_invariants()
        pids = rank_pids(llm.engine)
    assert len(pids) == 3 and not alive(pids)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    for answer, other in zip(answers, expected, strict=True):
        ours, theirs = ([entry.logprob for entry in each.logprobs] for each in (answer, other))
        assert ours == pytest.approx(theirs, abs=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("model_type", "sliding_window", "divide_lora_from"), [("mistral", 9, None), ("phi3", 12, 8)])
def test_windows_shared_prefixes_and_high_ranks_go_together(
    model_type: str,
    sliding_window: int,
    divide_lora_from: int | None,
    make_model: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """With several prefills a step; pages are given back and taken again, and the ranks know all of them."""
    model = make_model(model_type, vocab_size=99, sliding_window=sliding_window)
    config = read_model_config(model)
    adapters = {}
    for rank in (8, 24, 160):
        modules = tuple(config.spec.lora_shapes if rank == 24 else config.linear_shapes)
        folder = tmp_path / f"a{rank}"
        adapters[folder.name] = write_random_adapter(
            folder, config, rank=rank, seed=rank, scale=0.3, target_modules=modules
        )
    shared = range(3, 23)
    prompts = [[*shared[: 6 + 3 * (number % 5)], 30 + number, 7] for number in range(16)]
    lora_ids = [[*adapters, None][number % 4] for number in range(16)]
    settings: dict[str, Any] = {"dtype": "float32", "page_size": 4, "num_kv_pages": 48, "num_lora_pages": 48}
    settings |= {"cpu_threads": 1, "max_batch_size": 8, "max_lora_rank": 256, "lora_vocabulary": True}
    group: dict[str, Any] = {"tensor_parallel": 2, "max_prefills": 3, "divide_lora_from": divide_lora_from}
    answers = []
    for own in ({}, group):
        with LLM(model, adapters, prefill_budget_tokens=16, **settings, **own) as llm:
            params = [_params(number) for number in range(16)]
            first = llm.generate(prompts, lora_ids, params, progress=False)
            answers.append(first + llm.generate(prompts, lora_ids[::-1], params, progress=False))
            llm.engine.check_invariants()
            assert llm.engine.prefix_tokens[1] > 0
    expected, found = answers
    assert [answer.token_ids for answer in found] == [answer.token_ids for answer in expected]
    assert not any(answer.error for answer in found)


def test_a_rank_that_is_late_is_named(tiny_llama: Path) -> None:
    settings = GroupSettings(ready_timeout_s=0.25)
    with pytest.raises(RankLost, match=r"rank 1 \(cpu\) did not start within 0\.25 s"):
        Engine(EngineConfig(model=tiny_llama, cpu_threads=1), "cpu,cpu", others=settings)


def test_weights_that_are_cut_off_are_refused_before_any_rank_loads_them(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Path(shutil.copytree(tiny_llama, tmp_path / "model"))
    os.truncate(model / "model.safetensors", 2_000)
    monkeypatch.setattr(group_start, "RankGroup", None)
    with pytest.raises(ModelRejected, match=r"model\.safetensors is cut short: it has 2,000 bytes"):
        LLM(model, tensor_parallel=2)
    assert not any("rank_main" in command_line(pid) for pid in descendants(os.getpid()))


@pytest.mark.parametrize(
    ("device", "tensor_parallel", "message"),
    [
        ("cuda:0,cuda:0", 1, "names cuda:0 twice"),
        ("cpu,cuda:0", 1, "mixes kinds of devices"),
        ("cpu", 3, "can't divide this model"),
        ("cpu,cpu", 2, "not both"),
        ("cpu", 0, "a number of devices"),
    ],
)
def test_groups_that_cannot_work_are_refused_by_name(
    tiny_llama: Path, device: str, tensor_parallel: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM(tiny_llama, device=device, tensor_parallel=tensor_parallel)
