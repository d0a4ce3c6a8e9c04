"""Adapters with digests of their own that have the bytes of another one in host memory: thousands for a benchmark."""

from msgspec.structs import replace

from punica_serve.protocol import AdapterRef

#: Prefix of their URI; the other one's digest follows.
_SCHEME = "same:"


def shared_adapter(origin: AdapterRef, digest: str) -> AdapterRef:
    """An adapter whose bytes are those of ``origin``."""
    return replace(origin, digest=digest, uri=f"{_SCHEME}{origin.digest}")


def origin_digest(ref: AdapterRef) -> str | None:
    """The digest of the adapter whose bytes it has; None for one with bytes of its own."""
    return ref.uri.removeprefix(_SCHEME) if ref.uri.startswith(_SCHEME) else None
