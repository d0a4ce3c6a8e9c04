"""A group of processes on CPUs whose layers exchange, add and norm in the kernel of GPUs, in Triton's interpreter."""

from pathlib import Path

import torch

from punica_kernels.block_end import BlockEnd
from punica_kernels.gpu.all_reduce_norm import all_reduce_add_rms_norm
from punica_kernels.peer_memory import PeerMemory, piece_bytes
from punica_serve.engine.ranks.torch_collectives import TorchCollectives

_MAX_PROGRAMS = 4


class InterpretedNorm(TorchCollectives):
    """One rank's end. Each rank's piece of the memory is a file, which all of them map."""

    def __init__(self, library: TorchCollectives, folder: Path, max_rows: int, width: int, dtype: torch.dtype) -> None:
        super().__init__(library.group, library.store)
        num_bytes = piece_bytes(max_rows, width, dtype)
        folder.mkdir(exist_ok=True)
        files = [f"{folder / str(rank)}" for rank in range(self.rank.size)]
        pieces = [torch.from_file(file, shared=True, size=num_bytes, dtype=torch.uint8) for file in files]
        self._memory = PeerMemory.of_pieces(pieces, self.rank.index, max_rows, width, dtype, _MAX_PROGRAMS)

    def add_rms_norm(self, end: BlockEnd, *, pdl: bool) -> None:
        """Larger steps take the three kernels, as they do on GPUs."""
        if self._memory.holds(end.residual):
            all_reduce_add_rms_norm(end, self._memory)
        else:
            super().add_rms_norm(end, pdl=pdl)
