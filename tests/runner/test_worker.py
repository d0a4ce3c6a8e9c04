import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from process_tree import is_alive
from punica_runner.supervisor import engine_worker_command
from punica_runner.worker_process import WorkerDied, WorkerProcess, run_worker
from punica_runner.worker_tiers import WorkerTiers
from punica_serve.base_model.lora_layout import USUAL_LIMITS, pool_pages
from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.config.runner_section import RunnerConfig
from punica_serve.process.module_command import module_command
from punica_serve.protocol import (
    AssignmentId,
    AssignmentsFailed,
    Request,
    SamplingParams,
    StartRequest,
    StepReport,
    StopRequest,
)
from waits import DEADLINE_S, until

STUB = Path(__file__).with_name("stub_engine_worker.py")
LIMITS = RunnerConfig(ready_timeout_s=DEADLINE_S, silence_timeout_s=DEADLINE_S, stop_timeout_s=600.0)


def command(model: Path, *, index: int = 0) -> Sequence[str]:
    engine = EngineConfig(model=model, dtype="float32", page_size=4, num_kv_pages=2_048, cpu_threads=1)
    config = ClusterConfig(engine=engine, runner=RunnerConfig(devices=("cpu",) * (index + 1)))
    return engine_worker_command(config, "host", index)


@asynccontextmanager
async def running(command: Sequence[str]) -> AsyncIterator[WorkerProcess]:
    async with run_worker(command, LIMITS, WorkerTiers()) as worker:
        yield worker


def start(seq: int, prompt_ids: tuple[int, ...], **sampling: Any) -> StartRequest:
    request = Request(f"r{seq}", 0, prompt_ids, SamplingParams(seed=0, **sampling))
    return StartRequest("gpu", seq, AssignmentId(1, seq), request)


async def test_the_real_worker_runs_requests_and_frees_their_pages(make_llama: Callable[..., Path]) -> None:
    """One worker for all checks, because each start imports torch. The third request would take many seconds."""
    model = make_llama(max_position_embeddings=8_192)
    tokens: dict[int, list[int]] = {counter: [] for counter in (1, 2, 3, 4)}
    finished: dict[int, str] = {}
    async with asyncio.timeout(DEADLINE_S), running(command(model, index=1)) as worker:
        assert (worker.gpu.device, worker.gpu.num_kv_pages, worker.gpu.page_size) == ("cpu", 2_048, 4)
        assert worker.gpu.uuid.startswith("CPU-") and worker.gpu.num_lora_pages == pool_pages(64, USUAL_LIMITS)
        for seq in (1, 2):
            worker.send(start(seq, (5, 6, 7), max_tokens=6, ignore_eos=True))
        worker.send(start(3, (8, 9), max_tokens=8_000, ignore_eos=True))
        worker.send(start(4, (1, 99_999), max_tokens=4))
        stopped = False
        refusal = ""
        while True:
            report = await worker.receive()
            if not isinstance(report, StepReport):
                assert isinstance(report, AssignmentsFailed)
                refusal = report.error.message
                assert report.assignments == (AssignmentId(1, 4),) and report.permanent
                continue
            for counter, position, token_id in zip(report.assignments, report.positions, report.token_ids, strict=True):
                assert position == len(tokens[counter])
                tokens[counter].append(token_id)
            finished |= dict(report.finished)
            if not stopped and len(finished) == 2:
                worker.send(StopRequest("gpu", 5, AssignmentId(1, 3)))
                stopped = True
            if report.applied_seq == 5:
                break
    assert report.free_kv_pages == 2_048
    assert "token id 99999" in refusal and "outside the vocabulary" in refusal
    assert finished == {1: "length", 2: "length"}
    assert report.incarnation == 1
    assert len(tokens[1]) == 6 and tokens[1] == tokens[2]
    assert 0 < len(tokens[3]) < 8_000 and not tokens[4]


async def test_a_model_that_is_not_there_is_a_permanent_failure(tmp_path: Path) -> None:
    with pytest.raises(WorkerDied, match=str(tmp_path / "none")) as death:
        async with running(command(tmp_path / "none")):
            pass
    assert death.value.is_permanent


async def test_ranks_that_can_not_be_started_are_told_of(capfd: pytest.CaptureFixture[str]) -> None:
    """Here they need more open files than the process may have."""
    group = list(command(Path("none")))
    group[group.index("--device") + 1] = "cpu,cpu"
    with pytest.raises(WorkerDied, match="Too many open files") as death:
        async with running(("sh", "-c", 'ulimit -n 8; exec "$0" "$@"', *group)):
            pass
    assert not death.value.is_permanent and "start_early" in capfd.readouterr().err


def stub(behaviour: str, index: int = 0) -> Sequence[str]:
    """The name of the device selects the stub's behaviour."""
    real = list(command(Path("none"), index=index))
    real[real.index("--device") + 1] = behaviour
    return (sys.executable, "-P", str(STUB), *real[len(module_command("")) :])


async def test_a_cpu_has_a_name_of_its_own_that_outlives_the_process() -> None:
    uuids = []
    for index in (0, 1, 0):
        async with running(stub("idle", index)) as worker:
            uuids.append(worker.gpu.uuid)
    assert uuids[0] == uuids[2] != uuids[1]


@pytest.mark.parametrize("behaviour", ["broken-step", "stuck-read"])
async def test_an_error_in_a_step_is_reported_at_once_with_its_traceback_on_stderr(
    behaviour: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async with asyncio.timeout(DEADLINE_S):  # less than the time to kill a process that does not end by itself
        with pytest.raises(WorkerDied, match=r"^ZeroDivisionError: a bad step$"):
            async with running(stub(behaviour)) as worker:
                await worker.receive()
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize("behaviour", ["stuck-step", "lazy"])
async def test_a_worker_that_runs_but_makes_no_step_is_found(behaviour: str) -> None:
    limits = RunnerConfig(silence_timeout_s=4.0, step_timeout_s=0.5)
    with pytest.raises(WorkerDied, match=r"^it has made no step for 0\.5 s, though a request could run$"):
        async with run_worker(stub(behaviour), limits, WorkerTiers()) as worker:
            await worker.receive()


@pytest.mark.parametrize(("module", "extra"), [("torch", "engine"), ("triton", "gpu")], ids=str)
async def test_a_missing_package_is_reported_in_one_line(
    module: str, extra: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(WorkerDied) as death:
        async with running(stub(f"without {module}")):
            pass
    assert str(death.value) == f"{module} is not installed; pip install 'punica-serve[{extra}]'"
    assert death.value.is_permanent and capfd.readouterr().err == ""


async def test_another_module_that_is_missing_is_our_mistake(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(WorkerDied, match=r"^ModuleNotFoundError: .*colorsys") as death:
        async with running(stub("without colorsys")):
            pass
    assert not death.value.is_permanent and "Traceback" in capfd.readouterr().err


class Pipes:
    """A worker process without a supervisor: the test has the pipes."""

    def __init__(self, behaviour: str) -> None:
        their_read, self.write_fd = os.pipe()
        self.read_fd, their_write = os.pipe()
        fds = (their_read, their_write)
        arguments = ("--read-fd", str(their_read), "--write-fd", str(their_write))
        self.process = subprocess.Popen((*stub(behaviour), *arguments), pass_fds=fds, stderr=subprocess.PIPE)
        for fd in fds:
            os.close(fd)

    def wait_until_ready(self) -> None:
        assert os.read(self.read_fd, 4)

    def end(self) -> tuple[int, bytes]:
        """Its exit code and what it wrote to stderr."""
        try:
            _, stderr = self.process.communicate(timeout=DEADLINE_S)
        finally:
            self.process.kill()
            self.process.wait()
            for fd in {self.read_fd, self.write_fd} - {-1}:
                os.close(fd)
        return self.process.returncode, stderr

    def lose_supervisor(self) -> None:
        os.close(self.write_fd)
        self.write_fd = -1


def test_sigterm_ends_it_cleanly_and_sigint_not_at_all() -> None:
    worker = Pipes("idle")
    worker.wait_until_ready()
    worker.process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.process.wait(0.2)
    worker.process.terminate()
    assert worker.end() == (0, b"")


def test_ctrl_c_is_ignored_before_the_imports_which_take_seconds() -> None:
    code = "import sys; from punica_runner import worker; sys.exit(any('punica_serve' in name for name in sys.modules))"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("behaviour", "code"), [("idle", 0), ("stuck-step", 1)])
def test_a_ready_worker_without_a_supervisor_ends(behaviour: str, code: int) -> None:
    worker = Pipes(behaviour)
    worker.wait_until_ready()
    worker.lose_supervisor()
    assert worker.end() == (code, b"")


@pytest.mark.parametrize("behaviour", ["slow-start", "late-start"])
def test_a_worker_that_still_loads_ends_with_its_supervisor(behaviour: str) -> None:
    worker = Pipes(behaviour)
    worker.lose_supervisor()
    assert worker.end() == (0, b"")


@pytest.mark.skipif(sys.platform != "linux", reason="the second net is Linux's")
async def test_even_a_stopped_worker_ends_with_its_supervisor(tmp_path: Path) -> None:
    """A process that starts a worker, stops it (SIGSTOP: no Python can run in it), and dies."""
    script = tmp_path / "parent.py"
    script.write_text(
        f"""
import asyncio, os, signal
from punica_runner.worker_process import run_worker
from punica_runner.worker_tiers import WorkerTiers
from punica_serve.config.runner_section import RunnerConfig
async def main():
    async with run_worker({stub("idle")!r}, RunnerConfig(silence_timeout_s=60.0), WorkerTiers()) as worker:
        pid = worker._connection.process.pid
        os.kill(pid, signal.SIGSTOP)
        print(pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-P", str(script), stdout=subprocess.PIPE)
    async with asyncio.timeout(DEADLINE_S):
        stdout, _ = await parent.communicate()
    await until(lambda: not is_alive(int(stdout)))
