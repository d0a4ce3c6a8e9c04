"""Messages to and from the actors of a cluster."""

from dataclasses import dataclass, field
from typing import Literal

from punica_serve.process.logs import LogLevel

Kind = Literal["scheduler", "runner", "frontend"]

#: The name of the scheduler's actor, under which the others find it in the cluster's namespace.
SCHEDULER = "scheduler"


@dataclass(frozen=True)
class Role:
    """The process that an actor keeps running."""

    kind: Kind
    #: The actor's name, also used in messages.
    name: str
    #: The cluster's namespace, which separates clusters on one Ray.
    namespace: str
    #: The config document with absolute folders, since the file itself exists only where `up` runs. May hold secrets.
    config: str = field(repr=False)
    token: str = field(repr=False)
    log_level: LogLevel
    #: Where a frontend listens. Without a host, at its node's address; on port 0, at a free one.
    host: str | None = None
    port: int = 0
    runner_id: str = ""


@dataclass(frozen=True)
class Place:
    """An actor's place."""

    node_id: str
    #: The URL of its process, once it listens. A runner has none.
    url: str | None
