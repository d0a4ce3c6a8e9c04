"""Matches an adapter's regular expressions in a separate process, which is killed if they take too long."""

import logging
import signal
import subprocess

import msgspec

from punica_serve.adapters.base_modules import BaseModules
from punica_serve.adapters.matching import Matches
from punica_serve.adapters.pattern_job import Matched, Matching, PatternAnswer, PatternJob, Rejected
from punica_serve.adapters.peft_config import PeftConfig
from punica_serve.errors import AdapterRejected, StoreUnavailable
from punica_serve.learned_types import learned
from punica_serve.process.limits import bare_environment, low_priority_command

#: Time limit from start to end. The process ends itself long before, unless the machine is overloaded.
MAX_WALL_S = 60.0

#: Deaths by these signals are not the adapter's fault, since the server is being stopped. Limits use other signals.
_STOPPED = (-signal.SIGINT, -signal.SIGTERM)

_COMMAND = low_priority_command("punica_serve.adapters.pattern_worker")
_DECODER: msgspec.json.Decoder[PatternAnswer] = msgspec.json.Decoder(learned(PatternAnswer))

logger = logging.getLogger(__name__)


def match_in_process(config: PeftConfig, base: BaseModules) -> Matches:
    """Runs ``match_targets`` in another process. Blocks; thread-safe.

    Raises AdapterRejected, whose ``param`` is the field, also if matching takes too much time or memory;
    StoreUnavailable if the process can't run.
    """
    answers = _answers_to(PatternJob(config, base))
    match answers[-1]:
        case Matched(targets, warnings):
            return Matches(targets, warnings)
        case Rejected(message, param):
            raise AdapterRejected(message, param=param)
        case Matching(field):
            raise AdapterRejected(
                f"`{field}` takes too long to match; name modules in it, or use fewer and simpler expressions",
                param=field,
            )


def _answers_to(job: PatternJob) -> list[PatternAnswer]:
    """The answers before the process ended, by itself or by a limit; at least one."""
    try:
        ended = subprocess.run(
            _COMMAND,
            input=msgspec.json.encode(job),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=bare_environment(),
            timeout=MAX_WALL_S,
            start_new_session=True,  # a terminal's Ctrl-C is meant for the server
            check=False,
        )
        output, exit_code = ended.stdout, ended.returncode
    except subprocess.TimeoutExpired as error:
        output, exit_code = error.stdout or b"", -signal.SIGKILL
    except OSError as error:
        raise _unavailable(f"it can't be started: {error}") from error
    answers = [_DECODER.decode(line) for line in output.split(b"\n")[:-1]]  # the last line is empty or incomplete
    if exit_code > 0 or exit_code in _STOPPED or not answers:
        raise _unavailable(f"it ended with exit code {exit_code}")
    return answers


def _unavailable(reason: str) -> StoreUnavailable:
    logger.error("the process that matches adapters' patterns failed: %s", reason)
    return StoreUnavailable("the adapter's patterns can't be matched now; try again later")
