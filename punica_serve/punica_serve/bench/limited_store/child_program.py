"""A benchmark's Python program in a process of its own, which ends with its input."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from punica_serve.process.ctrl_c import ctrl_c_blocked
from punica_serve.process.ending import end_program
from punica_serve.process.module_command import module_command

_END_TIMEOUT_S = 5.0


@contextmanager
def child_program(module: str, arguments: Sequence[str]) -> Iterator["subprocess.Popen[bytes]"]:
    """Runs ``python -m module``, with pipes for its input and output, until the end of ``with``."""
    command = module_command(module, *arguments)
    with ctrl_c_blocked():
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    try:
        yield child
    finally:
        end_child(child)
        child.stdout.close()


def end_child(child: "subprocess.Popen[bytes]") -> None:
    """Ends its input, and kills it if it does not end with it. Does nothing for one that has ended."""
    assert child.stdin is not None
    with suppress(BrokenPipeError):  # it did not read all of it
        child.stdin.close()
    end_program(child, _END_TIMEOUT_S)
