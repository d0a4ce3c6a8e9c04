"""Times rows on their way to processes and back, which do nothing but copy them (figure 17)."""

import os
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from punica_serve.bench.cpu_assist_figures import echo_process
from punica_serve.bench.cpu_assist_figures.echo_process import (
    DONE,
    WORD_STRIDE,
    EchoMemory,
    memory_num_bytes,
    receive_all,
    share_of,
    wait_for,
)
from punica_serve.bench.cpu_assist_figures.figure_settings import RoundTrip, Way
from punica_serve.bench.cpu_assist_figures.measuring_thread import off_last_cores
from punica_serve.process.ctrl_c import ctrl_c_blocked
from punica_serve.process.ending import end_program
from punica_serve.process.module_command import module_command

#: Until the processes are warm.
_NUM_WARM_UPS = 5
_END_TIMEOUT_S = 5.0
_SOCKET_TIMEOUT_S = 30.0

_Bytes = npt.NDArray[np.uint8]
#: One round: sends all bytes and takes them back.
_Round = Callable[[], None]


def measure_round_trips(counts: Sequence[int], num_bytes: int, num_repeats: int) -> list[RoundTrip]:
    """Times round trips both ways, over the number of processes. Raises RuntimeError if the bytes that come back are
    others.
    """
    source = np.arange(num_bytes, dtype=np.uint64).astype(np.uint8)
    result = np.zeros_like(source)
    times = []
    for count in counts:
        for way, rounds in (("shared memory", _memory_rounds), ("sockets", _socket_rounds)):
            result.fill(0)
            with rounds(count, source, result) as run, off_last_cores(count):
                seconds = _median_s(run, num_repeats)
            if not np.array_equal(source, result):
                raise RuntimeError(f"the bytes that came back over {way} are others")
            times.append(RoundTrip(_as_way(way), count, seconds))
    return times


def _as_way(way: str) -> Way:
    return "sockets" if way == "sockets" else "shared memory"


def _median_s(run: _Round, num_repeats: int) -> float:
    for _ in range(_NUM_WARM_UPS):
        run()
    return statistics.median(_timed(run) for _ in range(num_repeats))


def _timed(run: _Round) -> float:
    started_s = time.perf_counter()
    run()
    return time.perf_counter() - started_s


@contextmanager
def _memory_rounds(count: int, source: _Bytes, result: _Bytes) -> Iterator[_Round]:
    fd = os.memfd_create("punica-bench-echo")
    try:
        os.ftruncate(fd, memory_num_bytes(count, len(source)))
        memory, numbers, last = EchoMemory(fd, count, len(source)), range(count), 0

        def run() -> None:
            nonlocal last
            memory.out[:] = source
            memory.ask(numbers, last + 1)
            for number in numbers:
                wait_for(memory.words, number * WORD_STRIDE + DONE, last)
            result[:] = memory.back
            last += 1

        with _processes("shared memory", [fd] * count, len(source)):
            yield run
            memory.end(numbers)
    finally:
        os.close(fd)


@contextmanager
def _socket_rounds(count: int, source: _Bytes, result: _Bytes) -> Iterator[_Round]:
    pairs = [socket.socketpair() for _ in range(count)]
    shares = [share_of(number, count, len(source)) for number in range(count)]
    for ours, _ in pairs:
        ours.settimeout(_SOCKET_TIMEOUT_S)

    def run() -> None:
        for (ours, _), share in zip(pairs, shares, strict=True):
            ours.sendall(source[share].data)
        for (ours, _), share in zip(pairs, shares, strict=True):
            if not receive_all(ours, result[share].data):
                raise RuntimeError("a process that echoes has ended early")

    try:
        with _processes("sockets", [theirs.fileno() for _, theirs in pairs], len(source)):
            yield run
            for ours, _ in pairs:
                ours.shutdown(socket.SHUT_WR)
    finally:
        for pair in pairs:
            for end in pair:
                end.close()


@contextmanager
def _processes(way: Way, fds: Sequence[int], num_bytes: int) -> Iterator[None]:
    """One process for each file descriptor, on a core of its own as far as there are any. All have ended afterwards,
    at once where an exception came: nobody has told them to end then.
    """
    cores = sorted(os.sched_getaffinity(0), reverse=True)
    started: list[subprocess.Popen[bytes]] = []
    grace_s = 0.0
    try:
        for number, fd in enumerate(fds):
            numbers = (cores[number % len(cores)], fd, number, len(fds), num_bytes)
            command = module_command(echo_process.__name__, way, *map(str, numbers))
            with ctrl_c_blocked():
                started.append(subprocess.Popen(command, pass_fds=(fd,)))
        yield
        grace_s = _END_TIMEOUT_S
    finally:
        for process in started:
            end_program(process, grace_s)
