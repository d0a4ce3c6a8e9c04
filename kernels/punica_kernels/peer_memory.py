"""The memory in which the ranks of a group exchange rows: each has a piece, and all of them map all pieces.

A piece has two *places* for each row, which the exchanges of this row take in turns, and a counter for each place:

    int32 [2, max_rows]            how many other ranks have put this row into the same place of their pieces
    dtype [2, max_rows, width]     the rows, from `rows_offset` on

A rank sets its counter back to zero when all have come. All pieces must be zero before the first rank begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

#: The rows begin at a multiple of so many bytes: more than a thread reads at once.
_ALIGNMENT = 512


@dataclass(frozen=True, slots=True)
class PeerMemory:
    """One rank's view of all pieces, for rows of one width and dtype. One exchange at a time may use it."""

    #: uint8 [`piece_bytes`] of each rank, by rank, as this one maps them.
    pieces: tuple[Tensor, ...]
    #: int64 [size]: their addresses, on the device.
    addresses: Tensor
    #: int32 [max_rows]: the place that each row takes next; zero at first. Only this rank reads it.
    turns: Tensor
    rank: int
    width: int
    dtype: torch.dtype
    #: Programs of one exchange. They wait for the other ranks', so all of them must fit on the device at once.
    max_programs: int

    @classmethod
    def of_pieces(
        cls, pieces: Sequence[Tensor], rank: int, max_rows: int, width: int, dtype: torch.dtype, max_programs: int
    ) -> "PeerMemory":
        """Room for exchanges of up to ``max_rows`` rows."""
        device = pieces[rank].device
        addresses = torch.tensor([piece.data_ptr() for piece in pieces], dtype=torch.int64, device=device)
        turns = torch.zeros(max_rows, dtype=torch.int32, device=device)
        return cls(tuple(pieces), addresses, turns, rank, width, dtype, max_programs)

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return len(self.pieces)

    @property
    def max_rows(self) -> int:
        return self.turns.numel()

    @property
    def rows_offset(self) -> int:
        """Bytes."""
        return _rows_offset(self.max_rows)

    def holds(self, rows: Tensor) -> bool:
        """Whether rows [num_rows, width] like these can be exchanged."""
        return rows.dtype == self.dtype and rows.shape[0] <= self.max_rows and rows.shape[1] == self.width


def piece_bytes(max_rows: int, width: int, dtype: torch.dtype) -> int:
    """Bytes of a rank's piece."""
    return _rows_offset(max_rows) + 2 * max_rows * width * dtype.itemsize


def _rows_offset(max_rows: int) -> int:
    return -(-2 * max_rows * torch.int32.itemsize // _ALIGNMENT) * _ALIGNMENT
