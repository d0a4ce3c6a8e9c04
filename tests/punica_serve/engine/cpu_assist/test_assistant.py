"""Where CPU assistance can't be had, and which cores it takes."""

import os
import platform

import pytest
import torch

from cpu_assist_host import NEEDS_CPU_ASSIST
from punica_serve.base_model.rank import Rank
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.cpu_assist import assistant, life_word
from punica_serve.engine.cpu_assist.assist_job import WaitLimits
from punica_serve.engine.cpu_assist.assistant import assist_cores, open_cpu_assist, wait_limits
from punica_serve.engine.memory.pinned_memory import HostMemory
from punica_serve.errors import ConfigError
from tiny_config import tiny_config

CPU = torch.device("cpu")
#: The number of a system call that no kernel has.
NO_CALL = 1 << 20


def refuse(*_: object, **__: object) -> HostMemory:
    raise ConfigError("1 MiB can't be pinned: raise `ulimit -l`", param="engine.host_cache_bytes")


@NEEDS_CPU_ASSIST
@pytest.mark.parametrize(
    ("place", "name", "value", "reason"),
    [
        (assistant, "open_host_memory", refuse, "1 MiB can't be pinned: raise `ulimit -l`"),
        (platform, "machine", lambda: "aarch64", "they need x86-64, and this host is aarch64"),
        (life_word, "_SET_ROBUST_LIST", NO_CALL, "the kernel does not tell of the ends of processes (set_robust_list)"),
        (life_word, "_GET_ROBUST_LIST", NO_CALL, "the kernel does not tell of the ends of processes (set_robust_list)"),
    ],
    ids=[
        "memory that can't be pinned",
        "a processor that reorders stores",
        "a kernel without robust lists",
        "a sandbox",
    ],
)
def test_a_host_without_what_they_need_costs_the_help_and_one_warning(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place: object,
    name: str,
    value: object,
    reason: str,
) -> None:
    monkeypatch.setattr(place, name, value)
    host = HostMemory(4096, is_shared=True)
    config = EngineConfig(model="model", cold_start="cpu_assist")
    try:
        assert open_cpu_assist(config, tiny_config(), torch.float32, host, CPU) is None
    finally:
        host.close()
    assert [record.message for record in caplog.records] == [
        f"`engine.cold_start` goes on without CPU processes: {reason}"
    ]


@pytest.mark.parametrize("mode", ["wait", "layerwise"])
def test_other_modes_have_no_processes(mode: str) -> None:
    host = HostMemory(4096)
    config = EngineConfig(model="model", cold_start=mode)
    assert open_cpu_assist(config, tiny_config(), torch.float32, host, CPU) is None


@pytest.mark.parametrize(
    ("exchanges_s", "expected"),
    [
        ([0.0002, 0.0003], WaitLimits(in_all_s=0.084, for_one_s=0.0212)),
        ([0.002, 0.003], WaitLimits(in_all_s=0.25, for_one_s=0.032)),
        ([0.2], WaitLimits(in_all_s=0.25, for_one_s=0.25)),
    ],
)
def test_one_exchange_is_waited_for_much_shorter_than_all_of_a_step(
    exchanges_s: list[float], expected: WaitLimits
) -> None:
    found = wait_limits(exchanges_s, num_layers=32)
    assert found.in_all_s == pytest.approx(expected.in_all_s)
    assert found.for_one_s == pytest.approx(expected.for_one_s)


def test_there_are_no_more_processes_than_cores_and_each_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 4, 5})
    assert assist_cores(8, CPU) == [5, 4, 3]
    assert assist_cores(2, CPU) == [5, 4]


def test_the_workers_of_several_gpus_take_other_cores_as_far_as_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    cores = [assist_cores(2, torch.device("cuda", index)) for index in range(4)]
    assert cores == [[5, 4], [3, 2], [1, 0], [5, 4]]


def test_ranks_on_cpus_take_other_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    assert [assist_cores(2, CPU, Rank(index, 2)) for index in range(2)] == [[5, 4], [3, 2]]


@NEEDS_CPU_ASSIST
def test_ranks_that_add_up_x_a_have_no_processes(caplog: pytest.LogCaptureFixture) -> None:
    host = HostMemory(4096)
    config = EngineConfig(model="model", cold_start="cpu_assist", divide_lora_from=8, expected_lora_rank=8)
    share = config.share_of(tiny_config(), Rank(0, 2))
    assert open_cpu_assist(config, share, torch.float32, host, CPU) is None
    assert "`engine.divide_lora_from`" in caplog.text


def test_auto_has_no_processes_in_a_group(caplog: pytest.LogCaptureFixture) -> None:
    config = EngineConfig(model="unused", cold_start="auto")
    share = config.share_of(tiny_config(), Rank(0, 2))
    assert open_cpu_assist(config, share, torch.float32, HostMemory(4096), CPU) is None
    assert not caplog.records


@NEEDS_CPU_ASSIST
def test_no_rank_has_processes_if_another_one_can_not(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[tuple[str, int]] = []

    def agree(name: str, value: int) -> int:
        asked.append((name, value))
        return 0

    host = HostMemory(4096, is_shared=True)
    config = EngineConfig(model="model", cold_start="cpu_assist", cpu_assist_processes=1)
    try:
        assert open_cpu_assist(config, tiny_config(), torch.float32, host, CPU, agree) is None
    finally:
        host.close()
    assert asked == [("CPU assistance", 1)] and "another rank" in caplog.text
