"""What the actors of a cluster are told and tell."""

from dataclasses import dataclass, field
from typing import Literal

from punica_serve.logs import LogLevel

Kind = Literal["scheduler", "runner", "frontend"]

#: The name of the scheduler's actor, by which the others find it in the cluster's namespace.
SCHEDULER = "scheduler"


@dataclass(frozen=True)
class Role:
    """Which process an actor keeps running."""

    kind: Kind
    #: Of the actor, and in messages.
    name: str
    #: Of the cluster's actors: two clusters on one Ray don't meet.
    namespace: str
    #: A config document whose folders are absolute: the file itself is only where `up` is. It may hold secrets.
    config: str = field(repr=False)
    token: str = field(repr=False)
    log_level: LogLevel
    #: Where a frontend listens: without a host, at its node's address; on port 0, at a free one.
    host: str | None = None
    port: int = 0
    runner_id: str = ""


@dataclass(frozen=True)
class Place:
    """Where an actor is."""

    node_id: str
    #: Of its process, once it listens. A runner never does.
    url: str | None
