"""The process that reads packed files."""

import mmap
import os
import socket
import subprocess
import sys

import pytest

from punica_serve.engine.adapters import chunk_process
from waits import DEADLINE_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no memory files")


def test_it_ends_without_a_word_where_its_worker_has_died_while_it_started() -> None:
    memory = os.memfd_create("memory")
    os.ftruncate(memory, mmap.PAGESIZE)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.close()
    command = [sys.executable, "-P", "-m", chunk_process.__name__, "--control", str(theirs.fileno())]
    command += ["--lanes", str(theirs.fileno()), "--memory", str(memory), "--threads", "2"]
    with theirs:
        ended = subprocess.run(
            command, pass_fds=(theirs.fileno(), memory), capture_output=True, text=True, timeout=DEADLINE_S
        )
    os.close(memory)
    assert (ended.returncode, ended.stderr) == (0, "")
