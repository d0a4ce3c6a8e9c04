"""The messages between the leader of a group and the other hosts that join it, over TCP.

Each connection begins with what it is for: a host's own, or that of one of its ranks, which the rank's process inherits
and speaks as a rank on the leader's host does. To a host go the frames of the ring, and messages among them.
"""

from punica_serve.engine.ranks.rank_messages import RankPing, RankPong
from punica_serve.protocol import AdapterFetched, FetchAdapter, Refused
from punica_serve.protocol.base import Message

# ------------------------------------------------------------------ host -> leader


class HostHello(Message, frozen=True):
    """The first message on a host's own connection."""

    version: str
    #: Its number; the leader's host is 0.
    host: int
    #: The group's, as its config has it.
    num_hosts: int
    #: Those of its ranks, in order.
    devices: tuple[str, ...]


class RankArrival(Message, frozen=True):
    """The first message on the connection of a rank, for its process."""

    rank: int


#: The messages that a connection may begin with.
FirstMessage = HostHello | RankArrival

#: The messages that follow on a host's own.
HostToLeader = AdapterFetched | RankPong

# ------------------------------------------------------------------ leader -> host


class HostWelcome(Message, frozen=True):
    """The answer to a host's hello: start your ranks."""

    #: The engine's settings as JSON, which count for all ranks; files are where the host's own settings say.
    engine: str
    #: The ranks of the group, and the first one of this host.
    num_ranks: int
    first_rank: int


#: The first answer.
HelloAnswer = HostWelcome | Refused
#: The messages that may come among the frames of the ring.
LeaderToHost = FetchAdapter | RankPing
