"""A group of ranks from its leader's side: the processes that it commands, watches and ends as one.

Steps and commands go through one ring, in order, before the leader launches anything itself. The ranks' answers arrive
on a thread. Once a rank is lost, all that waits for it fails, and the group is over.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from punica_serve.engine.batching.step_plan import StepPlan
from punica_serve.engine.ranks.launch_times import LaunchTimes, Phase, launch_lags_us
from punica_serve.engine.ranks.message_ring import RingStuck
from punica_serve.engine.ranks.pending_commands import PendingCommands
from punica_serve.engine.ranks.rank_loss import RankLost
from punica_serve.engine.ranks.rank_messages import (
    Agreed,
    AuditRank,
    Done,
    Introduce,
    Pages,
    Proposal,
    RankAudit,
    RankHello,
    RankPhase,
    RankReady,
    RankWelcome,
    StopRank,
)
from punica_serve.engine.ranks.rank_process import FollowingRank
from punica_serve.engine.ranks.rank_processes import RankProcesses
from punica_serve.engine.ranks.rank_watch import RankWatch
from punica_serve.engine.ranks.ring_frames import command_frame, step_frame
from punica_serve.engine.ranks.step_frames import StepEncoder
from punica_serve.engine.ranks.step_wait import StepWait
from punica_serve.errors import PunicaError
from punica_serve.errors.invariants import require
from punica_serve.process.start_clock import OnPhase, no_phases
from punica_serve.protocol import Message

log = logging.getLogger(__name__)


class RankGroup:
    """The other ranks. Commands and steps are sent from one thread."""

    def __init__(
        self,
        processes: RankProcesses,
        on_loss: Callable[[PunicaError], None] | None = None,
        on_phase: OnPhase = no_phases,
    ) -> None:
        """Owns the processes from now on.

        ``on_loss`` is called on another thread when a rank is lost, ``on_phase`` when one begins a phase of its start.
        """
        self._processes = processes
        self._settings = settings = processes.settings
        self._on_loss = on_loss
        self._on_phase = on_phase
        #: The newest phase of each rank's start.
        self._phases: dict[int, str] = {}
        self._changed = threading.Condition()
        self._loss: PunicaError | None = None
        #: Answers that have arrived: by kind or name, then by rank.
        self._arrived: dict[str, dict[int, Any]] = {}
        self._pending = PendingCommands()
        self._encoder = StepEncoder()
        #: Exchanges between CPUs end by themselves, a little earlier.
        self.step_wait = StepWait(settings.exchange_timeout_s + settings.silence_timeout_s)
        #: The leader's own.
        self.launches = LaunchTimes()
        self.ranks = processes.ranks
        self._watch = RankWatch(self.ranks, settings.silence_timeout_s, self._take, self._check_waits, self._lose)

    # -------------------------------------------------------------- the start

    def hellos(self) -> dict[str, RankHello]:
        """The hellos of all ranks, by name. Raises RankLost, naming those that are late."""
        hellos = self._await("hello", "start")
        return {rank.name: hellos[rank.index] for rank in self.ranks}

    def welcome(self, port: int) -> None:
        for rank in self.ranks:
            rank.tell(RankWelcome(self._processes.address, port))

    def smallest(self, name: str, value: int) -> int:
        """The smallest value of all ranks. Every rank must ask for it, at the same place of its start."""
        agreed: int = min(value, *self._await(name, f"say its {name}").values())
        for rank in self.ranks:
            rank.tell(Agreed(name, agreed))
        return agreed

    def await_ready(self) -> list[dict[str, float]]:
        """The seconds of each rank's start, by phase, when all can run steps.

        Raises RankLost, naming those that are late.
        """
        ready: dict[int, RankReady] = self._await("ready", "become ready")
        return [ready[rank.index].phases for rank in self.ranks]

    # -------------------------------------------------------------- while it runs

    @property
    def is_lost(self) -> bool:
        return self._loss is not None

    def check(self) -> None:
        """Raises the loss of a rank, if there was one."""
        if self._loss is not None:
            raise self._loss

    def loss_after(self, error: Exception) -> Exception:
        """Why an exchange has failed with this error: the loss of a rank, if it shows soon, or the error itself."""
        with self._changed:
            self._changed.wait_for(lambda: self._loss is not None, self._settings.silence_timeout_s)
        return self._loss or error

    def send_step(self, plan: StepPlan) -> None:
        """Tells all ranks to run a step, which the caller launches next. Raises RankLost."""
        for number, request in self._encoder.introduce(plan):
            self.send(Introduce(number, request))
        self._write(step_frame(self._encoder.encode(plan)))

    def send(self, command: Message) -> None:
        """Raises RankLost."""
        self._write(command_frame(command))

    def call(self, command: Callable[[int], Message]) -> "Future[list[RankAudit]]":
        """Sends the command that is made with a new number. The future ends when all ranks have done it.

        It has their audits, if these were asked for, or the first error.
        """
        number, future = self._pending.add(rank.name for rank in self.ranks)
        self.send(command(number))
        return future

    def audit(self, adapters: dict[str, Pages]) -> None:
        """Compares the ranks' page accounting with the leader's. Raises AssertionError, RankLost if a rank is gone."""
        sequences = self._encoder.known
        for audit in self._audits():
            require(audit.sequences == sequences, "a rank knows other sequences, or other pages of them")
            require(audit.adapters == adapters, "a rank has other adapters, or other pages of them")

    def launch_lags_us(self) -> Mapping[Phase, list[float]]:
        """See ``launch_lags_us``. No step may be running. Raises RankLost."""
        return launch_lags_us(self.launches.newest_ns, [audit.launches_ns for audit in self._audits()])

    def launched_early_s(self, own_early_s: float) -> dict[int, float]:
        """See ``LaunchTimes.early_s``: of the ranks on this host."""
        return self.launches.early_s(own_early_s, self._processes.launched_ns())

    def close(self) -> None:
        """Has all ranks end after the steps that were sent, and leaves no process behind."""
        self._watch.close()
        if self._loss is None:
            try:
                self.send(StopRank())
            except RankLost as loss:
                log.warning("the group ends by force: %s", loss)

    def kill(self) -> None:
        """Ends all ranks by force, when the start has failed: they may be in the midst of theirs."""
        self._watch.close()
        self._processes.end(0.0)

    def wait(self) -> None:
        """After ``close``: returns when no rank is left."""
        self._processes.end(self._settings.stop_timeout_s if self._loss is None else 0.0)

    # -------------------------------------------------------------- inside

    def _audits(self) -> list[RankAudit]:
        return self.call(AuditRank).result(self._settings.silence_timeout_s)

    def _write(self, frame: bytes) -> None:
        self.check()
        try:
            self._processes.ring.write(frame, self._settings.silence_timeout_s)
        except RingStuck:
            late = self._processes.slowest_reader
            raise RankLost(f"{late} reads no commands for {self._settings.silence_timeout_s:g} s") from None

    def _await(self, what: str, do: str) -> dict[int, Any]:
        """The answers of all ranks, by rank. Raises RankLost, naming those that are late."""
        timeout_s = self._settings.ready_timeout_s
        with self._changed:
            said = self._arrived.setdefault(what, {})
            self._changed.wait_for(lambda: self._loss is not None or len(said) == len(self.ranks), timeout_s)
            self.check()
            late = [rank for rank in self.ranks if rank.index not in said]
            begun = dict(self._phases)
        if late:
            names = " and ".join(rank.name for rank in late)
            phases = [f"rank {rank.index} in {begun[rank.index]!r}" for rank in late if rank.index in begun]
            where = f" ({', '.join(phases)})" if phases else ""
            raise RankLost(f"{names} did not {do} within {timeout_s:g} s{where}{self._processes.why_late()}")
        return said

    def _take(self, rank: FollowingRank, message: Any) -> None:
        """On the watch's thread."""
        match message:
            case RankHello():
                rank.gpu_uuid = message.gpu_uuid
                self._arrive("hello", rank, message)
            case RankPhase():
                with self._changed:
                    self._phases[rank.index] = message.name
                self._on_phase(rank.index, message.name)
            case RankReady():
                self._arrive("ready", rank, message)
            case Proposal():
                self._arrive(message.name, rank, message.value)
            case Done():
                self._pending.end(rank.name, message)

    def _check_waits(self) -> None:
        """On the watch's thread. Raises RankLost."""
        self._pending.check()
        self.step_wait.check()

    def _arrive(self, what: str, rank: FollowingRank, value: Any) -> None:
        with self._changed:
            self._arrived.setdefault(what, {})[rank.index] = value
            self._changed.notify_all()

    def _lose(self, loss: PunicaError) -> None:
        with self._changed:
            self._loss = loss
            self._changed.notify_all()
        self._processes.kill()  # a frozen rank's sockets would hold the leader's exchange on a CPU until its timeout
        self._pending.fail(loss)
        if self._on_loss is not None:
            self._on_loss(loss)
