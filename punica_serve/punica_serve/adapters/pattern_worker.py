"""A process that matches the regular expressions of one adapter's configuration, which are untrusted.

Python's matching backtracks and holds the interpreter lock meanwhile. Here the kernel limits time and memory: past its
processor time the process dies; past its memory the adapter is refused. It reads one job and exits.
"""

import sys

import msgspec

from punica_serve.adapters.matching import match_targets
from punica_serve.adapters.pattern_job import Matched, Matching, PatternAnswer, PatternJob, Rejected
from punica_serve.errors import AdapterRejected
from punica_serve.learned_types import learned
from punica_serve.process.limits import limit_memory, limited_cpu

#: Processor time of a job. A rank and an alpha for each of the 882 linear modules of a 126-layer model, by full path,
#: take 0.4 s.
MAX_CPU_S = 2.0
#: Memory beyond what the process starts with.
MAX_MEMORY_BYTES = 128 << 20


def main() -> None:
    limit_memory(MAX_MEMORY_BYTES)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=learned(PatternJob))
    with limited_cpu(MAX_CPU_S):
        _write(answer_of(job))


def answer_of(job: PatternJob) -> PatternAnswer:
    field = ""

    def announce(name: str) -> None:
        nonlocal field
        field = name
        _write(Matching(name))

    try:
        matches = match_targets(job.config, job.base, announce)
    except AdapterRejected as error:
        return Rejected(error.message, error.param)
    except MemoryError:
        return Rejected(f"`{field}` takes too much memory to match; name modules in it, without wildcards", field)
    return Matched(matches.targets, matches.warnings)


def _write(answer: PatternAnswer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()
