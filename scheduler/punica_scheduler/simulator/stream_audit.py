"""Audits that every stream is delivered exactly once: no gap, no repeat, no foreign token, no early end.

Tokens are kept in columns as they come and checked a million at a time, since a simulated hour has tens of millions.
"""

from array import array
from collections import Counter

import numpy as np
import numpy.typing as npt

from punica_serve.errors.invariants import require
from punica_serve.protocol import Deliveries, Ending, FinishReason
from punica_serve.simulation.tokens import TOKEN_STRIDE, first_token

_CHUNK_TOKENS = 1_000_000
#: Type code of `array`: 64 bits.
_INT = "q"

_Ints = npt.NDArray[np.int64]


class StreamAudit:
    """Streams are numbered from 0; stream i has seed i and ends by length after ``lengths[i]`` tokens.

    AssertionError: a stream is not what it must be.
    """

    def __init__(self, lengths: list[int], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._lengths: _Ints = np.array(lengths, dtype=np.int64)
        self._first_tokens: _Ints = np.array([first_token(seed) for seed in range(len(lengths))], dtype=np.int64)
        #: Tokens that have come, of each stream.
        self._num_tokens: _Ints = np.zeros(len(lengths), dtype=np.int64)
        #: When the first token came, of each stream.
        self.first_token_s: npt.NDArray[np.float64] = np.full(len(lengths), np.nan)
        #: When the newest token came, of each stream.
        self.last_token_s: npt.NDArray[np.float64] = np.full(len(lengths), np.nan)
        self._ended_by: list[FinishReason | None] = [None] * len(lengths)
        self.num_ended = 0
        #: Why the scheduler refused streams, or gave them up: they may end anywhere, but say so.
        self.failures: Counter[str] = Counter()
        self.num_tokens = 0
        #: Columns that are yet to be checked: a row for each token, and one for each delivery.
        self._streams = array(_INT)
        self._positions = array(_INT)
        self._token_ids = array(_INT)
        self._times_s = array("d")
        self._offsets = array(_INT)
        self._counts = array(_INT)
        self._ends: list[tuple[int, int]] = []

    @property
    def is_whole(self) -> npt.NDArray[np.bool_]:
        """For each stream, whether it has ended with all its tokens."""
        return np.array([reason == "length" for reason in self._ended_by])

    def take(self, deliveries: Deliveries, now_s: float) -> None:
        """Counts tokens and endings delivered to a frontend."""
        num_rows = len(deliveries.handles)
        if num_rows:
            self._streams.extend(deliveries.handles)
            self._positions.extend(deliveries.positions)
            self._token_ids.extend(deliveries.token_ids)
            self._times_s.append(now_s)
            self._offsets.append(deliveries.offset)
            self._counts.append(num_rows)
            self.num_tokens += num_rows
        for ending in deliveries.endings:
            self._end(ending)
        if len(self._streams) >= _CHUNK_TOKENS:
            self.check()

    def check(self) -> None:
        """Checks all that has come since the last time."""
        columns = (self._streams, self._positions, self._token_ids, self._times_s, self._offsets, self._counts)
        streams, positions, token_ids, times_s, offsets, counts = map(np.array, columns)
        for column in columns:
            del column[:]
        positions += np.repeat(offsets, counts)
        times_s = np.repeat(times_s, counts)
        order = np.argsort(streams, kind="stable")
        streams, positions, token_ids = streams[order], positions[order], token_ids[order]
        times_s = times_s[order]
        self._check_positions(streams, positions)
        wanted = (self._first_tokens[streams] + positions * TOKEN_STRIDE) % self._vocab_size
        _hold(wanted == token_ids, streams, "has a token of another stream or position")
        first = positions == 0
        self.first_token_s[streams[first]] = times_s[first]
        newest = np.ones(len(streams), dtype=np.bool_)
        newest[:-1] = streams[1:] != streams[:-1]
        self.last_token_s[streams[newest]] = times_s[newest]
        self._check_ends()

    def finish(self) -> None:
        """Checks at the end that all streams have ended, and that those that did not fail are whole."""
        self.check()
        never = [stream for stream, reason in enumerate(self._ended_by) if reason is None]
        require(not never, f"streams {never[:3]} never ended")
        whole = self.is_whole
        everyone = np.arange(len(self._lengths))
        _hold((self._num_tokens == self._lengths) | ~whole, everyone, "has lost tokens")

    def _end(self, ending: Ending) -> None:
        stream, reason = ending.handle, ending.reason
        require(self._ended_by[stream] is None, f"stream {stream} ended twice")
        self._ended_by[stream] = reason
        self.num_ended += 1
        if reason == "length":
            self._ends.append((stream, ending.num_tokens))
        else:
            self.failures[ending.error.message if ending.error else f"ended by {reason}"] += 1

    def _check_positions(self, streams: _Ints, positions: _Ints) -> None:
        """Checks that each stream's positions count on; its rows are adjacent and as they came."""
        found, starts, counts = np.unique(streams, return_index=True, return_counts=True)
        ranks = np.arange(len(streams)) - np.repeat(starts, counts)
        _hold(positions == self._num_tokens[streams] + ranks, streams, "has a gap or a repeat")
        self._num_tokens[found] += counts

    def _check_ends(self) -> None:
        if self._ends:
            streams, num_tokens = np.array(self._ends, dtype=np.int64).T
            _hold(num_tokens == self._lengths[streams], streams, "ended early, or late")
            _hold(num_tokens == self._num_tokens[streams], streams, "ended before its last token came")
            self._ends.clear()


def _hold(holds: npt.NDArray[np.bool_], streams: _Ints, what: str) -> None:
    if not holds.all():
        raise AssertionError(f"stream {streams[~holds][0]} {what}")
