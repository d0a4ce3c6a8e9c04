"""Keys of KvCache pages: a page's keys and values follow from the model, the adapter and all tokens up to its end.

A key is the hash of all of these and of who may share the page, each part under a tag of its own and with its length.
So a salt that equals an adapter's digest, or a tenant that equals a salt, never leads to the other's pages.

Tokens are hashed in blocks of pages. A block begins with the hash of all before it, so what was computed for one
request's block holds for every request that begins alike, and is kept for the next.
"""

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b

from punica_serve.protocol import PrefixCaching, Request

#: With 128 bits of a cryptographic hash nobody finds tokens whose pages have the key of another tenant's.
_KEY_BYTES = 16
#: The length of the hash that a block begins with.
_CHAIN_BYTES = 32
_ID_BYTES = 4
#: A block is kept as a whole, so a smaller one is found more often, and a larger one costs less to find.
BLOCK_PAGES = 16
#: Blocks whose keys are kept: 2 KB each, with pages of 16 tokens.
_MAX_BLOCKS = 4096
#: BLAKE2b's `person` for each kind of input, so that no input of one leads to the hash of another.
_OWNER, _PAGE, _BLOCK, _INVOKED = b"punica-kv-owner", b"punica-kv-page", b"punica-kv-block", b"punica-kv-alora"

#: The tag and the value of each thing but tokens that keys and values, or sharing, depend on.
_ExtraKeys = tuple[tuple[str, str | None], ...]


class PrefixHash:
    """The keys of the full pages of one request, each computed once. Its tokens may only grow."""

    __slots__ = ("_begin", "_first_page", "_invoked", "_keys", "_page_size", "_start")

    def __init__(self, extra_keys: _ExtraKeys, page_size: int, invoked: str = "", first_page: int = 0) -> None:
        """Pages from ``first_page`` on also depend on ``invoked``, unless that is empty."""
        #: The first page of the newest block, and the hash of all before it.
        self._start, self._begin = 0, _hash_of(extra_keys)
        self._page_size = page_size
        self._invoked = invoked
        self._first_page = first_page
        self._keys: list[bytes] = []

    def keys(self, token_ids: Sequence[int], num_pages: int, first: int = 0) -> list[bytes]:
        """The keys of the first ``num_pages`` pages, which must be full, or of those from ``first`` on."""
        if num_pages > len(self._keys):
            self._extend(_encode_ids(token_ids[self._start * self._page_size : num_pages * self._page_size]))
        return self._keys[first:num_pages]

    def walk(self, token_ids: Sequence[int], num_pages: int, first: int = 0) -> Iterator[bytes]:
        """The same keys one by one. They are computed by blocks, so who stops early pays for one block more at most."""
        while first < num_pages:
            end = min(num_pages, first - first % BLOCK_PAGES + BLOCK_PAGES)
            yield from self.keys(token_ids, end, first)
            first = end

    def _extend(self, data: bytes) -> None:
        """``data``: the tokens from the newest block on."""
        page_bytes = self._page_size * _ID_BYTES
        while data:
            if self._invoked and self._start == self._first_page:
                self._begin = _hash_of((("before", self._begin.hex()), ("invoked", self._invoked)), _INVOKED)
                self._invoked = ""
            num_pages = min(BLOCK_PAGES, self._first_page - self._start) if self._invoked else BLOCK_PAGES
            block, data = data[: num_pages * page_bytes], data[num_pages * page_bytes :]
            if len(block) < num_pages * page_bytes:  # more of it may come
                self._keys[self._start :] = _page_keys(self._begin, block, page_bytes)
            else:
                self._keys[self._start :], self._begin = _block_keys(self._begin, block, page_bytes)
                self._start += num_pages


def prefix_hash(
    request: Request, settings: PrefixCaching, page_size: int, rotary_start: int = 0, invoked_at: int = 0
) -> PrefixHash:
    """The hash that begins a request's keys. ``rotary_start``: of the rows that its positions turn by, which may depend
    on its length. ``invoked_at``: the first row that its adapter updates; pages before it are the base model's.
    """
    extra_keys = _extra_keys(request, settings, page_size, None if invoked_at else request.digest, rotary_start)
    if not invoked_at or request.digest is None:
        return PrefixHash(extra_keys, page_size)
    return PrefixHash(extra_keys, page_size, request.digest, invoked_at // page_size)


def _extra_keys(
    request: Request, settings: PrefixCaching, page_size: int, digest: str | None, rotary_start: int = 0
) -> _ExtraKeys:
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
    begin, hints, start = _hash_of(_extra_keys(request, settings, page_size, request.digest)), list[int](), 0
    num_full = min(HINT_PAGES[-1], (len(token_ids) - 1) // page_size)
    data, page_bytes = _encode_ids(token_ids[: max(0, num_full) * page_size]), page_size * _ID_BYTES
    for num_pages in HINT_PAGES[: num_full.bit_length()]:
        while num_pages > start + BLOCK_PAGES:
            begin = _chain(begin, data[start * page_bytes : (start + BLOCK_PAGES) * page_bytes])
            start += BLOCK_PAGES
        hints.append(hint_of(_key(begin, data[start * page_bytes : num_pages * page_bytes])))
    return tuple(hints)


@lru_cache(_MAX_BLOCKS)
def _block_keys(begin: bytes, block: bytes, page_bytes: int) -> tuple[tuple[bytes, ...], bytes]:
    """The keys of a full block's pages, and the hash that the next block begins with."""
    return tuple(_page_keys(begin, block, page_bytes)), _chain(begin, block)


def _page_keys(begin: bytes, block: bytes, page_bytes: int) -> list[bytes]:
    hashed = blake2b(begin, digest_size=_KEY_BYTES, person=_PAGE)
    keys = []
    for start in range(0, len(block), page_bytes):
        hashed.update(block[start : start + page_bytes])
        keys.append(hashed.digest())
    return keys


def _key(begin: bytes, pages: bytes) -> bytes:
    """The key of the last of a block's first pages."""
    return blake2b(begin + pages, digest_size=_KEY_BYTES, person=_PAGE).digest()


def _chain(begin: bytes, block: bytes) -> bytes:
    return blake2b(begin + block, digest_size=_CHAIN_BYTES, person=_BLOCK).digest()


@lru_cache(_MAX_BLOCKS)
def _hash_of(extra_keys: _ExtraKeys, person: bytes = _OWNER) -> bytes:
    """The hash of the tag and the value of each."""
    return blake2b(_encode(extra_keys), digest_size=_CHAIN_BYTES, person=person).digest()


def _encode_ids(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian words, alike on all machines. All at once, which takes a fraction of the time."""
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def _encode(extra_keys: _ExtraKeys) -> bytes:
    """Tag and value of each extra key, with their lengths; a value that is None differs from an empty one."""
    encoded = bytearray()
    for tag, value in extra_keys:
        for text in (tag, value):
            data = b"" if text is None else b"=" + text.encode("utf-8", "surrogatepass")
            encoded += len(data).to_bytes(8, "little") + data
    return bytes(encoded)
