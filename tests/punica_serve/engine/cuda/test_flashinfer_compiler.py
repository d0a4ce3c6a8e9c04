"""Processes that compile end with their owner, and with all that they have started."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from punica_serve.engine.cuda import flashinfer_compiler
from punica_serve.engine.cuda.flashinfer_compiler import Compilation, CompileJob, FlashInferCompiler

_DEADLINE_S = 30.0
_CONSEQUENCE = "attention stays with Triton"


def _shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def _job(folder: Path, script: str) -> CompileJob:
    return CompileJob(_shell(script), folder / "locks" / "module.lock")


def _read(path: Path) -> str:
    """The file's first line, once it is there."""
    deadline_s = time.monotonic() + _DEADLINE_S
    while not path.exists() or not path.read_text().endswith("\n"):
        assert time.monotonic() < deadline_s, f"{path} did not appear"
        time.sleep(0.01)
    return path.read_text().strip()


def _is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_a_failure_is_told_by_its_last_line() -> None:
    with pytest.raises(RuntimeError, match="can't be compiled here: no nvcc"):
        Compilation(_shell("echo first >&2; echo no nvcc >&2; exit 3")).wait()
    with pytest.raises(RuntimeError, match="can't be compiled here: exit code 3"):
        Compilation(_shell("exit 3")).wait()
    Compilation(_shell("exit 0")).wait()


def test_beside_serving_it_runs_on_idle_cores_alone_and_on_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a quarter of those of a container's quota, which its priority does not spare."""
    monkeypatch.delenv("MAX_JOBS", raising=False)
    monkeypatch.setattr(flashinfer_compiler, "usable_cores", lambda: 12)
    jobs, pids = tmp_path / "jobs", tmp_path / "pids"
    script = f"echo $MAX_JOBS > {jobs}; sleep 600 & echo $$ $! > {pids}; wait"
    compilation = Compilation(_shell(script), is_beside_serving=True)
    try:
        assert int(_read(jobs)) == 3
        first = int(_read(pids).split()[0])
        deadline_s = time.monotonic() + _DEADLINE_S
        while os.sched_getscheduler(first) != os.SCHED_IDLE:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        assert os.getpriority(os.PRIO_PROCESS, first) == 19
    finally:
        with pytest.raises(RuntimeError, match="to compile"):
            compilation.wait(0.01)


def test_one_that_takes_too_long_is_killed_with_what_it_started(tmp_path: Path) -> None:
    compilation = Compilation(_shell(f"sleep 600 & echo $! > {tmp_path / 'pid'}; wait"))
    child = int(_read(tmp_path / "pid"))
    with pytest.raises(RuntimeError, match=r"took more than 0\.01 s to compile"):
        compilation.wait(0.01)
    deadline_s = time.monotonic() + _DEADLINE_S
    while _is_running(child):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


_STARTED = """
import subprocess, sys
from punica_serve.engine.cuda.flashinfer_compiler import end_with_owner
end_with_owner()
child = subprocess.Popen(["sleep", "600"])
print(child.pid, file=open(sys.argv[1], "w"), flush=True)
child.wait()
"""
_OWNER = """
import os, sys, time
from punica_serve.engine.cuda.flashinfer_compiler import Compilation
Compilation([sys.executable, "-c", sys.argv[1], sys.argv[2]])
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
os._exit(0)
"""


def test_what_a_dead_owner_has_started_ends_too(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    subprocess.run([sys.executable, "-c", _OWNER, _STARTED, str(file)], check=True, timeout=_DEADLINE_S)
    child = int(_read(file))
    deadline_s = time.monotonic() + _DEADLINE_S
    while _is_running(child):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_closing_ends_the_process_and_starts_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    compiler = FlashInferCompiler(
        [_job(tmp_path, f"echo $$ > {first}; exec sleep 600"), _job(tmp_path, f"echo > {second}")], _CONSEQUENCE
    )
    pid = int(_read(first))
    compiler.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not second.exists()
    assert not caplog.records


def test_a_failure_in_the_background_is_a_warning(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    scripts = (f"echo > {tmp_path / 'first'}", "exit 3", "exit 4")
    compiler = FlashInferCompiler((_job(tmp_path, script) for script in scripts), _CONSEQUENCE)
    deadline_s = time.monotonic() + _DEADLINE_S
    while not caplog.records:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    compiler.close()
    assert (tmp_path / "first").exists()
    assert caplog.messages == ["attention stays with Triton: FlashInfer's kernels can't be compiled here: exit code 3"]


def test_of_the_processes_of_a_host_one_compiles_a_module(tmp_path: Path) -> None:
    first, second, other = tmp_path / "first", tmp_path / "second", tmp_path / "other"
    compiler = FlashInferCompiler([_job(tmp_path, f"echo $$ > {first}; exec sleep 600")], _CONSEQUENCE)
    _read(first)
    waiting = FlashInferCompiler(
        [
            _job(tmp_path, f"echo no > {second}"),
            CompileJob(_shell(f"echo done > {other}"), tmp_path / "other.lock"),
        ],
        _CONSEQUENCE,
    )
    assert _read(other) == "done", "another module is its own"
    assert not second.exists()
    compiler.close()
    again = FlashInferCompiler([_job(tmp_path, f"echo yes > {second}")], _CONSEQUENCE)
    assert _read(second) == "yes", "closing lets go of the lock"
    waiting.close()
    again.close()
