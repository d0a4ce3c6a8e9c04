"""The roles of a cluster on Ray, and the resources that each reserves."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from punica_serve.cli.up.on_ray.nodes import runner_id
from punica_serve.cli.up.on_ray.roles import SCHEDULER, Kind, Role
from punica_serve.config.device_groups import ranks_of
from punica_serve.process.logs import LogLevel

if TYPE_CHECKING:
    from punica_serve.config.cluster import ClusterConfig

#: Ray's names for a node's resources, such as {"CPU": 2}.
Resources = Mapping[str, float]


@dataclass(frozen=True)
class RayPlan:
    """The cluster's roles. Each bundle is reserved for the role with the same index."""

    config: "ClusterConfig"
    #: Separates this cluster from others on the same Ray.
    namespace: str
    token: str = field(repr=False)
    log_level: LogLevel
    #: Where frontends listen. Without a host, at their nodes' addresses; on consecutive ports, or free ones for 0.
    host: str | None
    port: int
    num_frontends: int
    #: API key for reading the advice from frontends that need one.
    key: str | None = field(default=None, repr=False)

    @property
    def control_roles(self) -> list[Role]:
        """The scheduler and the frontends."""
        frontends = [
            self._role("frontend", "frontend" if self.num_frontends == 1 else f"frontend {index}", port=port)
            for index, port in enumerate(self._frontend_ports)
        ]
        return [self._role("scheduler", SCHEDULER), *frontends]

    @property
    def _frontend_ports(self) -> list[int]:
        return [self.port and self.port + index for index in range(self.num_frontends)]

    @property
    def control_bundles(self) -> list[Resources]:
        return [self.config.ray.scheduler, *[self.config.ray.frontend] * self.num_frontends]

    def runner_role(self, node_id: str) -> Role:
        return self._role("runner", f"runner {runner_id(node_id)}", runner_id=runner_id(node_id))

    @property
    def runner_bundle(self) -> Resources:
        """A runner's resources; by default one CPU or GPU for each device."""
        if self.config.ray.runner is not None:
            return self.config.ray.runner
        ranks = (name for worker in self.config.runner.workers for name in ranks_of(worker))
        return Counter("GPU" if name.startswith("cuda") else "CPU" for name in ranks)

    @property
    def needs(self) -> Resources:
        """The resources that a Ray of a single node needs."""
        total: Counter[str] = Counter()
        for bundle in (*self.control_bundles, self.runner_bundle):
            total.update({name: math.ceil(amount) for name, amount in bundle.items()})
        return total

    def _role(self, kind: Kind, name: str, *, port: int = 0, runner_id: str = "") -> Role:
        return Role(
            kind=kind,
            name=name,
            namespace=self.namespace,
            config=self.config.model_dump_json(exclude_unset=True),
            token=self.token,
            log_level=self.log_level,
            host=self.host,
            port=port,
            runner_id=runner_id,
        )
