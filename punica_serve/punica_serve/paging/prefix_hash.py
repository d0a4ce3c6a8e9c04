"""Keys of KvCache pages: a page's keys and values follow from the model, the adapter and all tokens up to its end.

A key is the hash of all of these and of who may share the page, each part under a tag of its own and with its length.
So a salt that equals an adapter's digest, or a tenant that equals a salt, never leads to the other's pages.
"""

import struct
from collections.abc import Sequence
from hashlib import blake2b

from punica_serve.protocol import PrefixCaching, Request

#: With 128 bits of a cryptographic hash nobody finds tokens whose pages have the key of another tenant's.
_KEY_BYTES = 16
_ID_BYTES = 4
_PERSON = b"punica-kv-page"


class PrefixHash:
    """The keys of the full pages of one request, each computed once. Its tokens may only grow."""

    __slots__ = ("_first_page", "_hash", "_invoked", "_keys", "_page_size")

    def __init__(
        self, parts: Sequence[tuple[str, str | None]], page_size: int, invoked: str = "", first_page: int = 0
    ) -> None:
        """``parts``: the tag and the value of each thing but tokens that keys and values, or sharing, depend on.

        Pages from ``first_page`` on also depend on ``invoked``, unless that is empty.
        """
        self._hash = blake2b(_encode(parts), digest_size=_KEY_BYTES, person=_PERSON)
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
        data, page_bytes, add = _encode_ids(token_ids), self._page_size * _ID_BYTES, self._keys.append
        for start in range(0, len(data), page_bytes):
            if self._invoked and len(self._keys) == self._first_page:
                # Another blake2b `person`, so that no tokens lead to the same hash.
                begin = _encode((("before", self._hash.hexdigest()), ("invoked", self._invoked)))
                self._hash = blake2b(begin, digest_size=_KEY_BYTES, person=b"punica-kv-alora")
            self._hash.update(data[start : start + page_bytes])
            add(self._hash.copy().digest())


def prefix_hash(
    request: Request, settings: PrefixCaching, page_size: int, rotary_start: int = 0, invoked_at: int = 0
) -> PrefixHash:
    """The hash that begins a request's keys. ``rotary_start``: of the rows that its positions turn by, which may depend
    on its length. ``invoked_at``: the first row that its adapter updates; pages before it are the base model's.
    """
    parts = _parts(request, settings, page_size, None if invoked_at else request.digest, rotary_start)
    if not invoked_at or request.digest is None:
        return PrefixHash(parts, page_size)
    return PrefixHash(parts, page_size, request.digest, invoked_at // page_size)


_Parts = tuple[tuple[str, str | None], ...]


def _parts(
    request: Request, settings: PrefixCaching, page_size: int, digest: str | None, rotary_start: int = 0
) -> _Parts:
    """The tag and the value of each thing but tokens that keys and values, or sharing, depend on."""
    return (
        ("model", settings.model),
        ("page_size", str(page_size)),
        ("rotary_start", str(rotary_start)),
        ("adapter", digest),
        ("tenant", None if settings.scope == "cluster" else request.tenant_id),
        ("salt", request.cache_salt),
    )


#: A scheduler is told of prefixes of so many pages, which tells their lengths within a factor of two.
HINT_PAGES = tuple(1 << power for power in range(9))


def hint_of(key: bytes) -> int:
    """A short number for a page's key in reports: a collision costs a worse placement, and nothing else."""
    return int.from_bytes(key[:8], "little")


def hints_of(request: Request, settings: PrefixCaching, page_size: int, token_ids: Sequence[int]) -> tuple[int, ...]:
    """The hints of a request with these tokens: of its first 1, 2, 4 ... pages, without the last token's.

    An adapter that is invoked within the prompt has none of the base model's pages before that.
    """
    hashed, hints, start = blake2b(digest_size=_KEY_BYTES, person=_PERSON), list[int](), 0
    hashed.update(_encode(_parts(request, settings, page_size, request.digest)))
    for num_pages in HINT_PAGES:
        end = num_pages * page_size
        if end >= len(token_ids):
            break
        hashed.update(_encode_ids(token_ids[start:end]))
        hints.append(hint_of(hashed.copy().digest()))
        start = end
    return tuple(hints)


def _encode_ids(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian words, alike on all machines. All at once, which takes a fraction of the time."""
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def _encode(parts: Sequence[tuple[str, str | None]]) -> bytes:
    """Tag and value of each part, with their lengths; a part that is None differs from an empty one."""
    encoded = bytearray()
    for tag, value in parts:
        for text in (tag, value):
            data = b"" if text is None else b"=" + text.encode("utf-8", "surrogatepass")
            encoded += len(data).to_bytes(8, "little") + data
    return bytes(encoded)
