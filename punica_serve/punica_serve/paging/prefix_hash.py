"""Keys of KvCache pages: a page's keys and values follow from the model, the adapter and all tokens up to its end.

A key is the hash of all of these and of who may share the page, each part under a tag of its own and with its length.
So a salt that equals an adapter's digest, or a tenant that equals a salt, never leads to the other's pages.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from punica_serve.protocol import PrefixCaching, Request

#: With 128 bits of a cryptographic hash nobody finds tokens whose pages have the key of another tenant's.
_KEY_BYTES = 16


class PrefixHash:
    """The keys of the full pages of one request, each computed once. Its tokens may only grow."""

    __slots__ = ("_hash", "_keys", "_page_size")

    def __init__(self, parts: Sequence[tuple[str, str | None]], page_size: int) -> None:
        """``parts``: the tag and the value of each thing but tokens that keys and values, or sharing, depend on."""
        self._hash = blake2b(_encode(parts), digest_size=_KEY_BYTES, person=b"punica-kv-page")
        self._page_size = page_size
        self._keys: list[bytes] = []

    def keys(self, token_ids: Sequence[int], num_pages: int) -> list[bytes]:
        """The keys of the first ``num_pages`` pages, which must be full."""
        first = len(self._keys)
        if num_pages > first:
            self._extend(token_ids[first * self._page_size : num_pages * self._page_size])
        return self._keys[:num_pages]

    def _extend(self, token_ids: Sequence[int]) -> None:
        tokens = array("I", token_ids)
        data, page_bytes = memoryview(tokens.tobytes()), tokens.itemsize * self._page_size
        for start in range(0, len(data), page_bytes):
            self._hash.update(data[start : start + page_bytes])
            self._keys.append(self._hash.copy().digest())


def prefix_hash(request: Request, settings: PrefixCaching, page_size: int, rotary_start: int = 0) -> PrefixHash:
    """The hash that begins a request's keys. ``rotary_start``: of the rows that its positions turn by, which may depend
    on its length.
    """
    tenant = None if settings.scope == "cluster" else request.tenant_id
    parts = (
        ("model", settings.model),
        ("page_size", str(page_size)),
        ("rotary_start", str(rotary_start)),
        ("adapter", request.digest),
        ("tenant", tenant),
        ("salt", request.cache_salt),
    )
    return PrefixHash(parts, page_size)


def _encode(parts: Sequence[tuple[str, str | None]]) -> bytes:
    """Tag and value of each part, with their lengths; a part that is None differs from an empty one."""
    encoded = bytearray()
    for tag, value in parts:
        for text in (tag, value):
            data = b"" if text is None else b"=" + text.encode("utf-8", "surrogatepass")
            encoded += len(data).to_bytes(8, "little") + data
    return bytes(encoded)
