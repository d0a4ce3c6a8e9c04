"""Profiles are read from YAML, and the shipped ones predict what was measured."""

from pathlib import Path

import pytest
import yaml

from punica_serve.base_model.lora_layout import LORA_GROUPS
from punica_serve.errors import ConfigError
from punica_serve.performance.profile import PerformanceProfile, load_profile, shipped_profiles
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.prefill_chunks import PrefillBudget
from punica_serve.protocol import AdapterRef, GpuInfo, Request, SamplingParams
from punica_serve.simulation.gpu import SimulatedGpu
from punica_serve.workload import Population, shipped_workload

RANKS = {"q_proj": 16, "o_proj": 16, "gate_proj": 16, "down_proj": 16}


def test_a_profile_has_the_numbers_of_its_file(tmp_path: Path, profile: PerformanceProfile) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(profile.model_dump(mode="json")))
    assert load_profile("mine.yaml", tmp_path) == profile


def test_all_shipped_profiles_can_be_read() -> None:
    assert shipped_profiles() == ("a10-7b-padded", "a10-7b-unpadded", "a100-40g-7b", "cpu-demo", "h100-7b", "h200-7b")
    assert all(load_profile(name).source for name in shipped_profiles())


def test_only_the_papers_a10_prefills_apart_from_decodes() -> None:
    prefills = {name: load_profile(name).prefills for name in shipped_profiles()}
    assert prefills == {
        "a10-7b-padded": "apart",
        "a10-7b-unpadded": "apart",
        "a100-40g-7b": "beside",
        "cpu-demo": "beside",
        "h100-7b": "beside",
        "h200-7b": "beside",
    }


def test_an_unknown_profile_is_refused_with_those_that_there_are() -> None:
    names = ", ".join(shipped_profiles())
    with pytest.raises(ConfigError, match=f"no performance profile 'a100'; give one of {names}, or a YAML"):
        load_profile("a100")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("prefill", {"tokens": [2, 1], "ms": [1.0, 2.0]}, "`tokens` must ascend"),
        ("prefill", {"tokens": [1, 2], "ms": [1.0]}, "`ms` must be as long as `tokens`"),
        ("decode", {"batch": [1], "context": [1, 2], "ms": [[1.0]]}, "a line for each of `batch`"),
        ("prefill", {"tokens": [1, 2], "ms": [2.0, 1.0]}, "`ms` must not fall while `tokens` rises"),
        ("decode", {"batch": [1, 2], "context": [1], "ms": [[2.0], [1.0]]}, "must not fall while `batch` rises"),
        ("decode", {"batch": [1], "context": [1, 2], "ms": [[2.0, 1.0]]}, "must not fall while `context` rises"),
        ("lora", {"kind": "distinct", "pages": [0, 1], "ms": [0.0]}, "`ms` must be as long as `pages`"),
        ("lora", {"kind": "padded", "rank_ms": -0.1}, "must be 0 or more"),
        ("lora", {"kind": "unpadded", "rank_ms": float("inf")}, "finite"),
        ("lora", {"kind": "bgmv"}, "distinct"),
        ("version", 1, "2"),
        ("group_size", 0, "must be 1 or more"),
        ("group_size", 65, "must be 64 or less"),
        ("max_prefills", 2, "1"),
        ("prefills", "alone", "'beside' or 'apart'"),
        ("adapter_load", {"gb_per_s": 0.0}, "must be more than 0"),
    ],
)
def test_a_wrong_profile_is_refused_with_file_and_key(
    key: str, value: object, message: str, tmp_path: Path, profile: PerformanceProfile
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump({**profile.model_dump(mode="json"), key: value}))
    with pytest.raises(ConfigError, match=message) as refused:
        load_profile(str(path))
    assert str(path) in refused.value.message
    assert f"`{key}" in refused.value.message


@pytest.mark.parametrize(
    ("name", "population", "tokens_per_s"),
    [
        # Punica, figure 11.
        ("a100-40g-7b", Population.DISTINCT, 1044),
        # docs/performance.md.
        ("h200-7b", Population.DISTINCT, 4367),
        ("h200-7b", Population.IDENTICAL, 4707),
    ],
)
def test_a_simulated_gpu_generates_as_fast_as_the_real_one(
    name: str, population: Population, tokens_per_s: int
) -> None:
    assert _tokens_per_s(load_profile(name), population) == pytest.approx(tokens_per_s, rel=0.02)


def _tokens_per_s(profile: PerformanceProfile, population: Population) -> float:
    """Simulates the thousand requests of the throughput measurement, at most 32 in a step."""
    info = GpuInfo("SIM-1", "simulated", 32, 16, 4000, dict.fromkeys(LORA_GROUPS, 256))
    gpu = SimulatedGpu(info, StepTimeModel(profile), prefill_budget=PrefillBudget(512), vocab_size=32000)
    workload = shipped_workload()
    for number, (length, adapter) in enumerate(zip(workload.lengths, workload.adapters[population], strict=True)):
        params = SamplingParams(max_tokens=length.output, seed=number)
        ref = AdapterRef(f"{adapter}", "", 80_000_000, RANKS)
        gpu.add(number, Request(f"{number}", number, (1,) * length.prompt, params, ref), 0.0)
    now_s, num_tokens = 0.0, 0
    while gpu.num_requests:
        plan = gpu.begin_step(now_s)
        if plan is None:
            assert gpu.next_ready_s is not None
            now_s = gpu.next_ready_s
            continue
        now_s += plan.duration_s
        num_tokens += len(gpu.end_step().keys)
    return num_tokens / now_s
