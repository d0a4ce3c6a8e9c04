import signal
import subprocess
import sys

from punica_serve.process.ctrl_c import ctrl_c_blocked
from waits import DEADLINE_S

SAY_WHEN_READY = "print('ready', flush=True); input()"


def test_a_child_never_gets_ctrl_c_from_its_first_instruction_on() -> None:
    with ctrl_c_blocked():
        child = subprocess.Popen([sys.executable, "-c", SAY_WHEN_READY], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        child.send_signal(signal.SIGINT)
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGINT)
        assert child.communicate(b"\n", timeout=DEADLINE_S)[0] == b""
    assert child.returncode == 0


def test_the_parent_gets_it_afterwards_as_before() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with ctrl_c_blocked():
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
