"""The adapters of a rank that follows its leader: read when the leader reads them, copied where it says.

Reads and copies run on threads. Everything else runs on the thread that takes the leader's commands, in their order, so
that a copy overwrites no page which a step sent before it reads.
"""

from concurrent.futures import Future

from punica_serve.engine.adapters.copy_error import copy_error
from punica_serve.engine.adapters.host_cache import HostCache, HostCopy
from punica_serve.engine.adapters.lora_pool import AdapterPages
from punica_serve.engine.adapters.reader import AdapterReader
from punica_serve.engine.ranks.adapter_folders import AdapterFolders
from punica_serve.engine.ranks.rank_copies import RankCopies
from punica_serve.protocol import AdapterRef


class RankAdapters:
    """Copies to pages that the leader gives, and a host cache of its own."""

    def __init__(self, copies: RankCopies, host_cache: HostCache, reader: AdapterReader) -> None:
        self.copies = copies
        self._host_cache = host_cache
        self._reader = reader
        #: Reads that nobody waits for yet; each has a reference to a copy when it has ended.
        self._reads: dict[str, Future[HostCopy]] = {}
        #: Where adapters' files were on this host when the leader last read them.
        self._folders = AdapterFolders()

    def read(self, ref: AdapterRef) -> None:
        """Reads an adapter ahead of its copy, which reads it again if that has failed by then."""
        self._release_reads()
        if not _is_remote(ref):
            self._folders.remember(ref.digest, ref.uri)
        if ref.digest not in self._host_cache and ref.digest not in self._reads:
            self._reads[ref.digest] = self._start(ref)

    def copy(self, ref: AdapterRef, pages: AdapterPages) -> "Future[None]":
        """Fills pages that no step to come reads for another adapter. Steps may read them when the future has ended."""
        digest = ref.digest
        source = self._take_read(digest) or self._host_cache.get(digest)
        return self.copies.start(digest, pages, source or self._start(self._folders.located(ref)))

    def free(self, digest: str) -> None:
        self._release_reads()
        self.copies.free(digest)

    def forget(self, digest: str) -> None:
        self._release_reads()
        self._folders.forget(digest)
        self._host_cache.evict(digest)
        self._reader.evict(digest)

    def close(self) -> None:
        """Starts nothing more, and waits for copies in flight."""
        self._reader.close()
        self.copies.close()
        self._host_cache.close()

    def _start(self, ref: AdapterRef) -> "Future[HostCopy]":
        return self._reader.read_along(ref) if _is_remote(ref) else self._reader.start(ref)

    def _take_read(self, digest: str) -> "Future[HostCopy] | None":
        """The read ahead of a copy, unless it has failed, which may be an earlier load's error.

        A rank notices late that a download was cut, when the leader may have begun another one. A read that fails later
        fails the copy, and the leader loads the adapter again.
        """
        read = self._reads.pop(digest, None)
        has_failed = read is not None and read.done() and copy_error(read) is not None
        return None if has_failed else read

    def _release_reads(self) -> None:
        """Lets the host cache evict what was read and not used yet."""
        for digest, read in [(digest, read) for digest, read in self._reads.items() if read.done()]:
            del self._reads[digest]
            if copy_error(read) is None:
                self._host_cache.release(read.result())


def _is_remote(ref: AdapterRef) -> bool:
    """Whether its files are in a store: they come to this host, or have come, without the leader saying where to."""
    return "://" in ref.uri
