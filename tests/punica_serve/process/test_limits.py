import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from punica_serve.process.limits import bare_environment, low_priority_command

LIMITS = "from punica_serve.process.limits import limit_memory, limited_cpu\n"


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", LIMITS + program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(("num_bytes", "fits"), [(32 << 20, True), (128 << 20, False)])
def test_memory_beyond_the_limit_is_refused(num_bytes: int, fits: bool) -> None:
    done = run(f"limit_memory({64 << 20})\nprint(len(bytearray({num_bytes})))")
    assert (done.returncode == 0) == fits
    assert done.stdout == f"{num_bytes}\n" if fits else "MemoryError" in done.stderr


def test_processor_time_ends_the_process() -> None:
    assert run("with limited_cpu(0.1):\n    while True: pass").returncode == -signal.SIGPROF


def test_processor_time_counts_inside_only() -> None:
    work = "for _ in range(3):\n    with limited_cpu(5.0): pass\nfrom time import process_time\n"
    assert run(f"{work}while process_time() < 0.3: pass").returncode == 0
    assert run("import time\nwith limited_cpu(0.1): time.sleep(0.3)").returncode == 0


def test_a_process_learns_where_its_code_is_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/code")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert bare_environment() == {"PYTHONPATH": "/code"}


def test_a_process_of_low_priority_has_it_before_its_imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = "import os, sys; at_import = os.nice(0)\ndef main(): print(at_import, sys.argv[1])"
    (tmp_path / "probe.py").write_text(module)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = [*low_priority_command("probe"), "argument"]
    done = subprocess.run(command, env=bare_environment(), capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{min(os.nice(0) + 10, 19)} argument\n"
