"""Code shared by tests of the registry."""

from collections.abc import Awaitable, Callable

from punica_serve.protocol import AdapterRef, TenantQuota
from punica_serve.registry.records import AdapterVersion
from punica_serve.registry.registry import Registry

#: Opens one more registry on a test's database; keywords are Registry.open's.
OpenRegistry = Callable[..., Awaitable[Registry]]

NO_QUOTA = TenantQuota()


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def ref_of(digest: str, *, num_bytes: int = 8) -> AdapterRef:
    return AdapterRef(digest=digest, uri=f"/store/{digest}", num_bytes=num_bytes, ranks={"q_proj": 4}, scalings=(0.1,))


def shared_version(name: str, digest: str) -> AdapterVersion:
    """An adapter of the config file."""
    return AdapterVersion("shared", "shared", name, 1, ref_of(digest), None, None, None, pinned=False, created_s=0.0)
