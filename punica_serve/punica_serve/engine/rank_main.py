"""The process of a rank that follows its leader.

    python -m punica_serve.engine.rank_main, started by ``RankChild`` and not by hand

It imports what every rank needs before it knows what it serves, which its parent writes to its standard input. The main
thread runs steps and commands in the ring's order. Another one answers the leader's pings, and ends the process when
the leader has ended.
"""

import argparse
import contextlib
import logging
import os
import queue
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from punica_serve.base_model.rank import Rank
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.ranks.doorbell import Doorbell
from punica_serve.engine.ranks.message_ring import RingReader
from punica_serve.engine.ranks.rank_inbox import RankInbox
from punica_serve.engine.ranks.rank_link import LinkEnded, RankLink
from punica_serve.engine.ranks.rank_loss import ExchangeFailed, RankLost
from punica_serve.engine.ranks.rank_messages import (
    Agreed,
    LeaderToRank,
    Proposal,
    RankFailed,
    RankPhase,
    RankPing,
    RankPong,
    RankReady,
    RankWelcome,
)
from punica_serve.engine.ranks.rank_options import RankOptions
from punica_serve.errors import ConfigError, ModelRejected, ProtocolError, PunicaError
from punica_serve.process.logs import LogFormat, LogLevel, configure_logging
from punica_serve.process.memory_tuning import freeze_gc
from punica_serve.process.parent_death import end_with_parent
from punica_serve.process.read_chunks import read_chunks
from punica_serve.process.start_clock import StartClock, process_age_s
from punica_serve.protocol import Decoder, WireError

log = logging.getLogger(__name__)

_decode_options = Decoder(RankOptions)

#: How long a rank on a GPU polls for the next step after the newest one has ended, before it sleeps.
_POLL_S = 0.001
#: A thread that copies adapters may hold the GIL for so long when a step has come. Python's own 5 ms is a whole step.
_SWITCH_INTERVAL_S = 50e-6
#: How long a process may run on after its leader has ended.
_ORPHAN_GRACE_S = 0.1
#: An exchange fails before it shows which rank is gone, so a rank waits this long for its leader to end, or to end the
#: group, before it reports its own end. A leader whose exchange has failed waits for reports for ``silence_timeout_s``,
#: of which a rank takes at most this share.
_BLAME_GRACE_S = 1.0
_BLAME_SHARE = 0.5
#: From the start of a rank until it is told what it serves: its parent reads its own settings meanwhile.
_OPTIONS_TIMEOUT_S = 300.0


def main() -> None:
    inherited = _parse()
    clock = StartClock(process_age_s(), say=log.debug)  # its leader tells how far they are
    if inherited.ends_with_parent:
        end_with_parent()
    link = RankLink(Connection(inherited.link_fd), LeaderToRank)
    leader = _Leader(link)
    try:
        _serve(inherited, link, leader, clock)
    except LinkEnded:
        os._exit(0)
    except Exception as error:
        is_own = isinstance(error, PunicaError) and not isinstance(error, ExchangeFailed)
        if not is_own and leader.has_ended_soon():
            os._exit(0)
        _fail(link, error)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="punica_serve.engine.rank_main", description="Started by its leader.")
    parser.add_argument("--ring-fd", required=True, type=int)
    parser.add_argument("--bell-fd", required=True, type=int)
    parser.add_argument("--reader", required=True, type=int, help="its place among the readers of the ring")
    parser.add_argument("--num-readers", required=True, type=int)
    parser.add_argument("--link-fd", required=True, type=int)
    parser.add_argument("--ends-with-parent", action="store_true")
    return parser.parse_args()


class _Leader:
    """The leader, on a thread of its own: this process ends with it."""

    def __init__(self, link: RankLink) -> None:
        self._link = link
        #: Its longest silence, once it has told the options. It answers and pings far more often.
        self._timeout_s = _OPTIONS_TIMEOUT_S
        self._blame_grace_s = _BLAME_GRACE_S
        self._options: queue.SimpleQueue[RankOptions] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[RankWelcome | Agreed] = queue.SimpleQueue()
        self._has_ended = threading.Event()
        threading.Thread(target=self._read, name="leader-reader", daemon=True).start()

    def has_ended_soon(self) -> bool:
        """Whether the leader has ended, or does while a rank may wait for that."""
        return self._has_ended.wait(self._blame_grace_s)

    def options(self) -> RankOptions:
        """This rank's settings. The thread ends the process if nobody tells them in time."""
        return self._options.get(timeout=_OPTIONS_TIMEOUT_S)

    def address(self) -> tuple[str, int]:
        """Where the ranks meet: host and port."""
        welcome = self._answer("where the ranks meet")
        assert isinstance(welcome, RankWelcome)
        return welcome.host, welcome.port

    def agree(self, name: str, value: int) -> int:
        """The value that all ranks take."""
        self._link.send(Proposal(name, value))
        agreed = self._answer(f"what all ranks take as {name}")
        assert isinstance(agreed, Agreed)
        assert agreed.name == name
        return agreed.value

    def _answer(self, what: str) -> RankWelcome | Agreed:
        """Raises RankLost if the leader does not say it in time."""
        try:
            return self._answers.get(timeout=self._timeout_s)
        except queue.Empty:
            raise RankLost(f"rank 0 has not said {what} within {self._timeout_s:g} s") from None

    def _read(self) -> None:
        options = _await_options()
        self._timeout_s = options.ready_timeout_s
        self._blame_grace_s = min(_BLAME_GRACE_S, _BLAME_SHARE * options.silence_timeout_s)
        self._options.put(options)
        try:
            while self._link.await_message(self._timeout_s):
                message = self._link.receive()
                if isinstance(message, RankPing):
                    self._link.send(RankPong(message.number))
                else:
                    self._answers.put(message)
            log.error("rank 0 has said nothing for %g s, so this rank ends", self._timeout_s)
            os._exit(1)
        except LinkEnded:
            self._has_ended.set()
            threading.Event().wait(_ORPHAN_GRACE_S)  # if it was told to stop, it may be about to
        os._exit(0)


def _await_options() -> RankOptions:
    """Reads the settings that the parent writes. Ends the process if it has ended before, or does not write in time."""
    try:
        said = b"".join(read_chunks(sys.stdin.fileno(), time.monotonic() + _OPTIONS_TIMEOUT_S))
        if not said:
            os._exit(0)
        options: RankOptions = _decode_options(said)
    except TimeoutError:
        log.error("this rank ends: its parent has not said within %g s what it serves", _OPTIONS_TIMEOUT_S)
        os._exit(1)
    except ProtocolError as error:  # one that is cut off, if the parent has ended within
        log.error("this rank ends, since it was not told what it serves: %s", error)
        os._exit(1)
    return options


def _serve(inherited: argparse.Namespace, link: RankLink, leader: _Leader, clock: StartClock) -> NoReturn:
    # Imported here, because it takes seconds, in which the leader may end.
    from punica_serve.engine.device_runner import import_runner
    from punica_serve.engine.engine_parts import EngineParts, open_engine_device
    from punica_serve.engine.host_tiers import open_early
    from punica_serve.engine.rank_engine import RankEngine
    from punica_serve.engine.ranks.joining import Joining
    from punica_serve.engine.ranks.network_interface import interface_to
    from punica_serve.engine.ranks.rank_hello import hello_of
    from punica_serve.engine.ranks.rendezvous import join, leave, make_current, reach_port
    from punica_serve.engine.ranks.ring_frames import read_frame
    from punica_serve.models.collectives import Collectives
    from punica_serve.store.packed_folder import PackedCache

    clock.spent("imports", clock.total_s)
    options = leader.options()
    configure_logging(options.name, LogLevel(options.log_level), LogFormat(options.log_format))
    config = EngineConfig.model_validate_json(options.engine_config)
    with clock.phase("device"):
        device = open_engine_device(config, options.device)
    rank = Rank(options.rank, options.size)
    host_memory = open_early(config, device, rank)
    link.send(hello_of(config, device, options.size))
    clock.on_phase = lambda _, name: link.send(RankPhase(name))
    make_current(device)

    def join_others() -> Collectives:
        host, port = leader.address()
        store = reach_port(host, port, options.ready_timeout_s)
        return join(store, device, rank, options.exchange_timeout_s, interface=interface_to(host))

    with clock.phase("joining", together=True):
        joining = Joining(rank, join_others, in_background=device.type == "cuda")  # as the leader's does
    with clock.phase("imports"):
        import_runner(device)
    agree = clock.as_wait(leader.agree)
    opened = contextlib.ExitStack()
    parts = EngineParts.make(config, device, joining, agree, opened, clock)
    packed_cache = PackedCache(Path(options.cache_folder), options.cache_bytes) if options.cache_folder else None
    reader = RingReader(inherited.ring_fd, inherited.num_readers, inherited.reader)
    engine = RankEngine(config, parts, link.send, clock, host_memory, packed_cache, agree, on_launch=reader.tell_launch)
    poll_s = _POLL_S if device.type == "cuda" else 0.0
    inbox = RankInbox(reader, Doorbell(inherited.bell_fd), poll_s=poll_s, has_work=lambda: engine.is_running)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    link.send(RankReady(clock.phases))
    freeze_gc()  # while the leader does the same
    while True:
        command = read_frame(inbox.take())
        if isinstance(command, tuple):
            engine.run_step(command)
        elif not engine.apply(command):
            break
    engine.close()
    opened.close()
    leave()
    os._exit(0)


def _fail(link: RankLink, error: Exception) -> NoReturn:
    """Tells the leader why this rank ends, and this rank's own log, since the leader's may be another host's."""
    if isinstance(error, PunicaError):
        log.error("this rank ends: %s", error.message)
    else:
        traceback.print_exception(error)
    is_permanent = isinstance(error, ConfigError | ModelRejected)
    reason = error if isinstance(error, PunicaError) else PunicaError(f"{type(error).__name__}: {error}")
    with contextlib.suppress(LinkEnded):
        link.send(RankFailed(WireError.of(reason), is_permanent))
    sys.stderr.flush()
    os._exit(2 if is_permanent else 1)


if __name__ == "__main__":
    main()
