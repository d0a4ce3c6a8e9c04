"""The messages between a leader and the other ranks of its group.

Commands go through the ring, in one order with the steps. Everything else goes over a socket of two processes, to other
hosts over TCP: what is said at the start, pings, and what has become of commands.
"""

from punica_serve.protocol import PROTOCOL_VERSION, AdapterRef, LoraGroup, Request, WireError
from punica_serve.protocol.base import Message, Struct
from punica_serve.version import __version__

#: Pages of an adapter in each group that it touches.
Pages = dict[LoraGroup, list[int]]


def group_version() -> str:
    """The version of the release and of the messages, which must be the same on all ranks and hosts."""
    return ".".join(map(str, (__version__, *PROTOCOL_VERSION)))


# ------------------------------------------------------------------ through the ring


class Introduce(Message, frozen=True):
    """A sequence, which the next step runs for the first time."""

    number: int
    request: Request


class ReadAdapter(Message, frozen=True):
    """The leader reads this adapter to host memory, so that it will soon be needed: a hint. Its files are here."""

    adapter: AdapterRef


class CopyAdapter(Message, frozen=True):
    """Fill these pages with the adapter's share of this rank. Answered by Done."""

    number: int
    adapter: AdapterRef
    pages: Pages


class AwaitQueued(Message, frozen=True):
    """Answered by Done once steps can wait for the layers of this adapter, whose copy was commanded before."""

    number: int
    digest: str


class FreeAdapter(Message, frozen=True):
    """Steps no longer use the adapter's pages."""

    digest: str


class ForgetAdapter(Message, frozen=True):
    """The adapter was deleted: free its host memory."""

    digest: str


class AssistStep(Message, frozen=True):
    """CPU processes help the prefill of the next step. Answered by Done after it: an error if it waited in vain."""

    number: int


class SlowCopies(Message, frozen=True):
    """Copy adapters' bytes to the device so many times, which emulates a slower link for benchmarks."""

    factor: int


class AuditRank(Message, frozen=True):
    """Answered by Done, with the rank's audit."""

    number: int


class StopRank(Message, frozen=True):
    """End, after the steps that were sent before."""


RankCommand = (
    Introduce
    | ReadAdapter
    | CopyAdapter
    | AwaitQueued
    | FreeAdapter
    | ForgetAdapter
    | AssistStep
    | SlowCopies
    | AuditRank
    | StopRank
)

# ------------------------------------------------------------------ rank -> leader


class RankHello(Message, frozen=True):
    """The first message: what must be the same on all ranks, and what must differ."""

    version: str
    #: See ``model_digest``.
    model: str
    #: How it adds up tensors, in words.
    exchange: str
    #: The GPU's UUID; "" for a CPU.
    gpu_uuid: str
    #: The device as its driver names it, and its bytes of memory; 0 for a CPU.
    device_name: str
    device_bytes: int


class RankPhase(Message, frozen=True):
    """The rank begins a phase of its start, after its hello."""

    name: str


class RankReady(Message, frozen=True):
    """The rank can run steps."""

    #: Seconds of its start, by phase.
    phases: dict[str, float]


class RankFailed(Message, frozen=True):
    """The rank ends. ``permanent``: starting it again can't help."""

    error: WireError
    permanent: bool


class Proposal(Message, frozen=True):
    """This rank's value of something on which all must agree."""

    name: str
    value: int


class RankAudit(Struct, frozen=True):
    """A rank's page accounting, which must equal the leader's, and the times of its launches."""

    #: Pages of each sequence that it knows, by number.
    sequences: dict[int, list[int]]
    #: Pages of each adapter on its device, by digest.
    adapters: dict[str, Pages]
    #: See ``LaunchTimes.newest_ns``.
    launches_ns: tuple[tuple[int, ...], ...] = ()


class Done(Message, frozen=True):
    """A command with this number has ended."""

    number: int
    error: WireError | None = None
    audit: RankAudit | None = None


class RankPong(Message, frozen=True):
    """The answer to a ping."""

    number: int


RankToLeader = RankHello | RankPhase | RankReady | RankFailed | Proposal | Done | RankPong

# ------------------------------------------------------------------ leader -> rank


class RankWelcome(Message, frozen=True):
    """All ranks have said hello and fit together: meet at this address, which is the leader's."""

    host: str
    port: int


class Agreed(Message, frozen=True):
    """All ranks have proposed a value, and this one counts."""

    name: str
    value: int


class RankPing(Message, frozen=True):
    number: int


LeaderToRank = RankWelcome | Agreed | RankPing
