"""One start of an engine in a process of its own: its phases as it goes, and its seconds at the end."""

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, Any

from punica_serve.config.device_groups import ranks_of
from punica_serve.config.engine_section import EngineConfig
from punica_serve.process.ctrl_c import ctrl_c_blocked
from punica_serve.process.death_reason import failure_reason
from punica_serve.process.ending import end_program
from punica_serve.process.module_command import module_command
from punica_serve.process.read_chunks import read_lines

_MODULE = "punica_serve.bench.start.start_process"
#: Before the first phase that is told.
_FIRST_PHASE = "imports"
_LAST_PHASE = "ending"


@dataclass(frozen=True, slots=True)
class Start:
    """One start: seconds from the beginning of its process until it was ready, and of each phase, by rank."""

    total_s: float
    by_rank: Sequence[Mapping[str, float]]


class Phases:
    """The phase that each rank of a start is in."""

    def __init__(self, num_ranks: int) -> None:
        self._by_rank = [_FIRST_PHASE] * num_ranks

    def begin(self, rank: int, phase: str) -> None:
        self._by_rank[rank] = phase

    def end(self) -> None:
        """All are ready, and end."""
        self._by_rank = [_LAST_PHASE] * len(self._by_rank)

    def __str__(self) -> str:
        if len(self._by_rank) == 1:
            return self._by_rank[0]
        return ", ".join(f"rank {rank} {phase}" for rank, phase in enumerate(self._by_rank))


def start_once(
    config: EngineConfig, device: str, timeout_s: float, on_phases: Callable[[Phases], None] = lambda _: None
) -> Start:
    """Starts an engine and ends it, and tells its phases as they change.

    Raises RuntimeError if it can't be started, or not within the timeout.
    """
    command = module_command(_MODULE, config.model_dump_json(), device, f"{time.monotonic()}")
    phases = Phases(len(ranks_of(device)))
    with TemporaryFile() as errors:
        with ctrl_c_blocked():
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
        try:
            start = _follow(child, phases, time.monotonic() + timeout_s, on_phases)
        except TimeoutError:
            message = f"{device} has not started and ended within {timeout_s:g} s, and was in: {phases}"
            raise RuntimeError(f"{message}; raise `--timeout`, or look at what holds up that phase") from None
        finally:
            end_program(child)
        if child.returncode or start is None:
            raise RuntimeError(f"{device} can't be started: {failure_reason(child.returncode, _text(errors))}")
    return start


def _follow(
    child: "subprocess.Popen[bytes]", phases: Phases, deadline_s: float, on_phases: Callable[[Phases], None]
) -> Start | None:
    """The start that the process tells, once it has ended; None if it has told none. Raises TimeoutError."""
    start = None
    assert child.stdout is not None
    with child.stdout as output:
        on_phases(phases)
        for line in read_lines(output.fileno(), deadline_s):
            told = _parse(line)
            if told is None:
                continue
            if "phase" in told:
                phases.begin(told["rank"], told["phase"])
            else:
                start = Start(**told)
                phases.end()
            on_phases(phases)
    try:
        child.wait(max(0.0, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    return start


def _parse(line: bytes) -> dict[str, Any] | None:
    """None for a line of a library, such as NCCL's with NCCL_DEBUG: it and all ranks write to the same pipe."""
    try:
        told = json.loads(line)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def _text(errors: IO[bytes]) -> str:
    errors.seek(0)
    return errors.read().decode(errors="replace")
