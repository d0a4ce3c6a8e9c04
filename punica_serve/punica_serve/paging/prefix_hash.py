"""Keys of KvCache pages: a page's keys and values follow from the model, the adapter and all tokens up to its end.

A key is the hash of all of these and of who may share the page, each part under a tag of its own and with its length.
So a salt that equals an adapter's digest, or a tenant that equals a salt, never leads to the other's pages.
"""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b

from punica_serve.protocol import PrefixCaching, Request

#: With 128 bits of a cryptographic hash nobody finds tokens whose pages have the key of another tenant's.
_KEY_BYTES = 16


class PrefixHash:
    """The keys of the full pages of one request, each computed once. Its tokens may only grow."""

    __slots__ = ("_first_page", "_hash", "_invoked", "_keys", "_page_size")

    def __init__(
        self, parts: Sequence[tuple[str, str | None]], page_size: int, invoked: str = "", first_page: int = 0
    ) -> None:
        """``parts``: the tag and the value of each thing but tokens that keys and values, or sharing, depend on.

        Pages from ``first_page`` on also depend on ``invoked``, unless that is empty.
        """
        self._hash = blake2b(_encode(parts), digest_size=_KEY_BYTES, person=b"punica-kv-page")
        self._page_size = page_size
        self._invoked = invoked
        self._first_page = first_page
        self._keys: list[bytes] = []

    def keys(self, token_ids: Sequence[int], num_pages: int, first: int = 0) -> list[bytes]:
        """The keys of the first ``num_pages`` pages, which must be full, or of those from ``first`` on."""
        num_known = len(self._keys)
        if num_pages > num_known:
            self._extend(token_ids[num_known * self._page_size : num_pages * self._page_size])
        return self._keys[first:num_pages]

    def _extend(self, token_ids: Sequence[int]) -> None:
        size, pack = self._page_size, _packer(self._page_size)
        for start in range(0, len(token_ids), size):
            if self._invoked and len(self._keys) == self._first_page:
                # Of another person, so that no tokens lead to the same hash.
                begin = _encode((("before", self._hash.hexdigest()), ("invoked", self._invoked)))
                self._hash = blake2b(begin, digest_size=_KEY_BYTES, person=b"punica-kv-alora")
            self._hash.update(pack(*token_ids[start : start + size]))
            self._keys.append(self._hash.copy().digest())


def prefix_hash(
    request: Request, settings: PrefixCaching, page_size: int, rotary_start: int = 0, invoked_at: int = 0
) -> PrefixHash:
    """The hash that begins a request's keys. ``rotary_start``: of the rows that its positions turn by, which may depend
    on its length. ``invoked_at``: the first row that its adapter updates; pages before it are the base model's.
    """
    tenant = None if settings.scope == "cluster" else request.tenant_id
    parts = (
        ("model", settings.model),
        ("page_size", str(page_size)),
        ("rotary_start", str(rotary_start)),
        ("adapter", None if invoked_at else request.digest),
        ("tenant", tenant),
        ("salt", request.cache_salt),
    )
    if not invoked_at or request.digest is None:
        return PrefixHash(parts, page_size)
    return PrefixHash(parts, page_size, request.digest, invoked_at // page_size)


@lru_cache(maxsize=8)
def _packer(page_size: int) -> Callable[..., bytes]:
    """Makes a page's token ids bytes, alike on all machines."""
    return struct.Struct(f"<{page_size}I").pack


def _encode(parts: Sequence[tuple[str, str | None]]) -> bytes:
    """Tag and value of each part, with their lengths; a part that is None differs from an empty one."""
    encoded = bytearray()
    for tag, value in parts:
        for text in (tag, value):
            data = b"" if text is None else b"=" + text.encode("utf-8", "surrogatepass")
            encoded += len(data).to_bytes(8, "little") + data
    return bytes(encoded)
