"""The newest link of each peer of the scheduler, and whose link speaks for a GPU. Does no input or output."""

from typing import Generic, TypeVar

from punica_serve.errors import ProtocolError
from punica_serve.protocol import FrontendHello, RunnerHello

Link = TypeVar("Link")


class PeerLinks(Generic[Link]):
    """Peers are known by their names, such as ``frontend_peer("f1")``."""

    def __init__(self) -> None:
        self._links: dict[str, Link] = {}
        #: Runner id -> the process that has it.
        self._instances: dict[str, str] = {}
        #: GPU UUID -> its runner's link, and the GPU's name.
        self._gpus: dict[str, Link] = {}
        self._gpu_names: dict[str, str] = {}

    def admit(self, hello: FrontendHello | RunnerHello) -> None:
        """Raises ProtocolError for a second runner of one id: two would take each other's GPUs away for ever."""
        match hello:
            case RunnerHello(runner_id=runner_id, instance=instance):
                if self._instances.get(runner_id, instance) != instance:
                    message = f"another runner has the id {runner_id!r}; give each its own `--runner-id`"
                    raise ProtocolError(message, param="runner_id")

    def put_runner(self, runner_id: str, instance: str) -> None:
        """Gives an id to the process that was admitted with it, until ``forget_runner``."""
        self._instances[runner_id] = instance

    def put(self, peer: str, link: Link) -> Link | None:
        """Makes this a peer's newest link. Returns the one before, if there is one."""
        previous, self._links[peer] = self._links.get(peer), link
        return previous

    def is_newest(self, peer: str, link: Link) -> bool:
        return self._links.get(peer) is link

    def remove(self, peer: str) -> None:
        del self._links[peer]

    def frontend(self, frontend_id: str) -> Link:
        return self._links[frontend_peer(frontend_id)]

    def runner(self, runner_id: str) -> Link:
        return self._links[runner_peer(runner_id)]

    def forget_runner(self, runner_id: str, link: Link) -> None:
        """Forgets the GPUs of an ended link, and who has the runner's id unless it has dialled again."""
        if runner_peer(runner_id) not in self._links:
            self._instances.pop(runner_id, None)
        for uuid in [uuid for uuid, owner in self._gpus.items() if owner is link]:
            self.forget_gpu(uuid)

    def put_gpu(self, uuid: str, name: str, link: Link) -> None:
        self._gpus[uuid], self._gpu_names[uuid] = link, name

    def forget_gpu(self, uuid: str) -> None:
        del self._gpus[uuid], self._gpu_names[uuid]

    def gpu(self, uuid: str) -> Link:
        return self._gpus[uuid]

    def gpu_name(self, uuid: str) -> str:
        return self._gpu_names[uuid]

    def owns(self, link: Link, uuid: str) -> bool:
        """Whether a GPU is this link's: not if it was lost, or if another runner has joined it since."""
        return self._gpus.get(uuid) is link

    def gpu_names(self, link: Link) -> list[str]:
        """Returns the names of a link's GPUs, sorted."""
        return sorted(self._gpu_names[uuid] for uuid, owner in self._gpus.items() if owner is link)


def frontend_peer(frontend_id: str) -> str:
    return f"frontend {frontend_id}"


def runner_peer(runner_id: str) -> str:
    return f"runner {runner_id}"
