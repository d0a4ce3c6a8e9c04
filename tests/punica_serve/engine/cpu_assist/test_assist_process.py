"""Processes that divide the weights of a job: what they add, and how they leave a job that does not go on."""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cpu_assist_host import NEEDS_CPU_ASSIST
from punica_kernels.exchange_words import done_word
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.adapters.host_cache import HostCopy
from punica_serve.engine.adapters.layer_arrival import ArrivalFailed, CpuArrival
from punica_serve.engine.adapters.packing import PackedAdapter, PackedGroup, packed_num_bytes
from punica_serve.engine.adapters.random_pages import pack_random, repeated_noise
from punica_serve.engine.cpu_assist import assistant, process_pool
from punica_serve.engine.cpu_assist.assist_job import AssistJob, WaitLimits
from punica_serve.engine.cpu_assist.assist_process import _MAX_WAIT_S
from punica_serve.engine.cpu_assist.assistant import CpuAssist, open_cpu_assist
from punica_serve.engine.cpu_assist.torch_exchange import TorchExchange
from punica_serve.engine.memory.pinned_memory import HostMemory
from tiny_config import tiny_config
from waits import DEADLINE_S, wait_for

pytestmark = [NEEDS_CPU_ASSIST, pytest.mark.slow]  # processes import torch

_MODEL = tiny_config()
_NUM_PROCESSES, _NUM_ROWS = 3, 5
_QKV = dict.fromkeys(("q_proj", "k_proj", "v_proj"), 64)
_ALL = dict.fromkeys((*_QKV, "o_proj", "gate_proj", "up_proj", "down_proj"), 12)


@dataclass(frozen=True)
class Helpers:
    """Three processes, which may share cores, and the memory that they read adapters from."""

    assist: CpuAssist
    host: HostMemory

    def pack(self, ranks: Mapping[str, int]) -> PackedAdapter:
        num_bytes = packed_num_bytes(ranks, _MODEL, torch.float32)
        numbers = repeated_noise(num_bytes // 4, torch.float32, seed=1)
        return pack_random(self.host.bytes[:num_bytes], numbers, ranks, _MODEL, torch.float32)

    def start(self, packed: PackedAdapter, num_processes: int, max_wait_s: float = DEADLINE_S) -> AssistJob:
        """A job of an adapter that does not arrive."""
        assert self.assist.pool.wait_until_ready(DEADLINE_S) and self.assist.wait_until_free(DEADLINE_S)
        weights, processes = self.assist._weights(packed), range(num_processes)
        assert weights is not None
        arrival = CpuArrival(_MODEL.num_hidden_layers, lambda: None)
        return self.assist.start_job(
            weights, _NUM_ROWS, processes, arrival, WaitLimits.both(max_wait_s), lambda *_: None
        )

    def check(self, packed: PackedAdapter, num_processes: int) -> None:
        """Runs a step with these processes: what they add is x A B."""
        job = self.start(packed, num_processes)
        exchange = TorchExchange(job)
        for layer in range(_MODEL.num_hidden_layers):
            for group in _MODEL.spec.groups:
                x = torch.randn(_NUM_ROWS, group.in_features)
                found, own = exchange.run(layer, group.name, x), packed.groups.get(group.name)
                assert (found is None) == (own is None)
                if found is not None and own is not None:
                    torch.testing.assert_close(found, _delta(x, own, layer, group.out_offsets), rtol=1e-3, atol=1e-5)
        assert job.end()


def _delta(x: Tensor, own: PackedGroup, layer: int, out_offsets: tuple[int, ...]) -> Tensor:
    slices = []
    for number, (left, right) in enumerate(pairwise(out_offsets)):
        a, b = own.a[:, layer, number].flatten(0, 1), own.b[:, layer, :, left:right].flatten(0, 1)
        slices.append(x @ a.T @ b)
    return torch.cat(slices, dim=1)


class _WholeMemory(HostMemory):
    is_whole = True


@pytest.fixture(scope="module")
def helpers() -> Iterator[Helpers]:
    with _open(HostMemory(64 << 20, is_shared=True), _NUM_PROCESSES) as helpers:
        yield helpers


@contextmanager
def _open(host: HostMemory, num_processes: int) -> Iterator[Helpers]:
    core = max(os.sched_getaffinity(0))
    config = EngineConfig(model="model", cold_start="cpu_assist", cpu_assist_processes=num_processes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assistant, "assist_cores", lambda *_: [core] * num_processes)
        assist = open_cpu_assist(config, _MODEL, torch.float32, host, torch.device("cpu"))
    assert assist is not None
    yield Helpers(assist, host)
    assist.close()
    host.close()


@pytest.mark.parametrize("num_processes", [1, 2, 3])
@pytest.mark.parametrize("ranks", [{"q_proj": 4}, {"o_proj": 8, "down_proj": 20}, _QKV, _ALL], ids=str)
def test_processes_add_x_a_b_of_the_groups_that_an_adapter_has(
    helpers: Helpers, ranks: dict[str, int], num_processes: int
) -> None:
    helpers.check(helpers.pack({**dict.fromkeys(_siblings(ranks), 0), **ranks}), num_processes)


def test_help_is_for_as_many_rows_as_the_memory_has_and_for_adapters_in_the_host_cache(helpers: Helpers) -> None:
    """One for which the cache has no room lies elsewhere, where no process sees it."""
    assert helpers.assist.pool.wait_until_ready(DEADLINE_S) and helpers.assist.wait_until_free(DEADLINE_S)
    num_bytes, max_rows = packed_num_bytes(_QKV, _MODEL, torch.float32), helpers.assist.shape.max_rows
    cached = HostCopy("cached", helpers.pack(_QKV), num_bytes, 0)
    helped = [helpers.assist.may_help(num_rows, cached) for num_rows in (0, 1, max_rows, max_rows + 1)]
    assert helped == [False, True, True, False]
    numbers, elsewhere = (
        repeated_noise(num_bytes // 4, torch.float32, seed=1),
        torch.empty(num_bytes, dtype=torch.uint8),
    )
    packed = pack_random(elsewhere, numbers, _QKV, _MODEL, torch.float32)
    assert not helpers.assist.may_help(1, HostCopy("elsewhere", packed, num_bytes, None))


def test_nobody_waits_for_ever_for_a_process_that_is_stopped_between_the_two_products(helpers: Helpers) -> None:
    """The others have written their v and wait for its; the step gives up, they leave the job, the next one counts."""
    packed, pool, memory = helpers.pack(_QKV), helpers.assist.pool, helpers.assist.memory
    job = helpers.start(packed, 3, max_wait_s=0.2)
    lost = pool.pid(1)
    assert lost is not None
    os.kill(lost, signal.SIGSTOP)
    with pytest.raises(ArrivalFailed):
        TorchExchange(job).run(0, "qkv", torch.zeros(_NUM_ROWS, _MODEL.hidden_size))
    wait_for(lambda: all(memory.shrunk[number] == done_word(job.key, 0) for number in (0, 2)))
    assert all(memory.done[number] < done_word(job.key, 0) for number in range(3))
    assert not job.end()
    helpers.assist.suspect(job)
    wait_for(lambda: all(memory.left[number] == job.key for number in (0, 2)))
    wait_for(lambda: pool.pid(1) not in (lost, None))
    helpers.check(packed, 3)


def test_all_leave_the_job_of_a_process_that_dies_between_the_two_products(helpers: Helpers) -> None:
    """At once, though its step goes on for long; no other job begins before that has ended."""
    packed, pool, memory = helpers.pack(_QKV), helpers.assist.pool, helpers.assist.memory
    job = helpers.start(packed, 3, max_wait_s=2 * DEADLINE_S)
    lost = pool.pid(1)
    assert lost is not None
    os.kill(lost, signal.SIGSTOP)
    memory.sent_words[0] = job.key
    wait_for(lambda: all(memory.shrunk[number] == done_word(job.key, 0) for number in (0, 2)))
    assert not any(memory.left[number] == job.key for number in (0, 2))
    os.kill(lost, signal.SIGKILL)
    killed_s = time.monotonic()
    wait_for(lambda: all(memory.left[number] == job.key for number in (0, 2)))
    assert time.monotonic() - killed_s < _MAX_WAIT_S / 2, "they don't wait until they give up"
    with pytest.raises(ArrivalFailed):
        TorchExchange(job).run(0, "qkv", torch.zeros(_NUM_ROWS, _MODEL.hidden_size))
    wait_for(lambda: pool.pid(1) is None)
    assert not helpers.assist.wait_until_free(0.2)
    assert not job.end()
    helpers.check(packed, 3)


def test_a_job_that_ends_early_is_left_by_all(helpers: Helpers) -> None:
    """Its step has exchanged one layer, and the next job divides other weights. No prefill gets help in between."""
    packed = helpers.pack(_QKV)
    copy = HostCopy("digest", packed, packed_num_bytes(_QKV, _MODEL, torch.float32), 0)
    job = helpers.start(packed, 3)
    TorchExchange(job).run(0, "qkv", torch.zeros(_NUM_ROWS, _MODEL.hidden_size))
    assert not helpers.assist.may_help(_NUM_ROWS, copy)
    assert job.end() and helpers.assist.wait_until_free(DEADLINE_S)
    assert helpers.assist.may_help(_NUM_ROWS, copy)
    helpers.check(helpers.pack(_ALL), 2)


def test_one_that_is_stopped_while_no_step_needs_it_is_replaced_before_others_want_help(
    helpers: Helpers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layers had arrived when the step looked, so nothing was exchanged and nobody has waited in vain."""
    monkeypatch.setattr(process_pool, "_STAY_GRACE_S", 0.2)
    packed, pool = helpers.pack(_QKV), helpers.assist.pool
    assert pool.wait_until_ready(DEADLINE_S)
    lost = pool.pid(1)
    assert lost is not None
    os.kill(lost, signal.SIGSTOP)
    assert helpers.start(packed, 3).end()
    wait_for(lambda: pool.pid(1) not in (lost, None))
    helpers.check(packed, 3)


def test_a_process_is_as_slow_as_it_was_in_the_last_job_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves one job late, and has just been told of the next when the pool looks again."""
    monkeypatch.setattr(process_pool, "_TICK_S", 10 * DEADLINE_S)  # the test looks instead
    monkeypatch.setattr(process_pool, "_STAY_GRACE_S", 0.2)
    with _open(HostMemory(1 << 20, is_shared=True), 1) as helpers:
        packed, pool = helpers.pack(_QKV), helpers.assist.pool
        wait_for(lambda: pool.ready, "the process")
        pid = pool.pid(0)
        assert pid is not None
        for is_first in (True, False):
            os.kill(pid, signal.SIGSTOP)
            assert helpers.start(packed, 1).end()
            pool._look_at_last_job()
            assert not pool._suspects
            time.sleep(0.2)
            if is_first:
                os.kill(pid, signal.SIGCONT)
                assert helpers.assist.wait_until_free(DEADLINE_S)
        pool._look_at_last_job()
        assert [suspects.job.key for suspects in pool._suspects] == [2]


def _siblings(ranks: Mapping[str, int]) -> list[str]:
    """Every projection of the groups that these are in: packing wants a rank of each."""
    names = [[projection.name for projection in group.projections] for group in _MODEL.spec.groups]
    return [name for group in names if set(group) & set(ranks) for name in group]


def test_processes_have_no_memory_handed_out_that_nobody_uses(helpers: Helpers) -> None:
    """A CPU's host cache grows with its adapters."""
    helpers.check(helpers.pack(_QKV), 3)
    assert _num_bytes_handed_out(helpers.host) < len(helpers.host.bytes) // 2


def test_processes_map_memory_that_was_handed_out_at_once_while_there_is_no_job() -> None:
    """Here it was not, so they have it handed out."""
    with _open(_WholeMemory(64 << 20, is_shared=True), 1) as helpers:
        wait_for(lambda: _num_bytes_handed_out(helpers.host) >= len(helpers.host.bytes))
        helpers.check(helpers.pack(_QKV), 1)


def test_a_file_of_the_working_folder_hides_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit('an own module of that name')")
    monkeypatch.chdir(tmp_path)
    with _open(HostMemory(1 << 20, is_shared=True), 1) as helpers:
        assert helpers.assist.pool.wait_until_ready(DEADLINE_S)


def _num_bytes_handed_out(host: HostMemory) -> int:
    return os.fstat(host.fd).st_blocks * 512
