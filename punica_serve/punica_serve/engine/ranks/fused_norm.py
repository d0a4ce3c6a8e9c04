"""A layer's exchange in one kernel over memory that all GPUs of a group map: sum over ranks, residual and norm."""

import torch

from punica_kernels.block_end import BlockEnd
from punica_kernels.peer_memory import PeerMemory, piece_bytes
from punica_serve.engine.ranks.mapped_memory import map_memory
from punica_serve.engine.ranks.torch_collectives import TorchCollectives


class FusedNorm:
    """The memory of one group for rows of one width and dtype. All its exchanges run on one stream, without PDL."""

    def __init__(
        self,
        collectives: TorchCollectives,
        max_bytes: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """All ranks must, and meet once more before the first exchange. ``max_bytes``: of a rank's rows.

        Raises RuntimeError if their GPUs can't map each other's memory.
        """
        rank, max_rows = collectives.rank, max(1, max_bytes // (width * dtype.itemsize))
        num_bytes = piece_bytes(max_rows, width, dtype)
        own, handle = map_memory(collectives, num_bytes, device)
        own.zero_()
        pieces = [handle.get_buffer(index, (num_bytes,), torch.uint8) for index in range(rank.size)]
        if pieces[rank.index].data_ptr() != own.data_ptr():
            raise RuntimeError("this torch maps symmetric memory at another place than its own tensor")
        pieces[rank.index] = own
        # A multiprocessor has room for one program of any width, so all of a launch run at once.
        max_programs = torch.cuda.get_device_properties(device).multi_processor_count
        self._memory = PeerMemory.of_pieces(pieces, rank.index, max_rows, width, dtype, max_programs)
        torch.cuda.synchronize(device)  # the zeros are there

    def takes(self, end: BlockEnd) -> bool:
        """See ``LayerExchange.takes``."""
        return self._memory.holds(end.residual)

    def __call__(self, end: BlockEnd, *, pdl: bool) -> None:
        """See ``LayerExchange``. It never starts early, whatever ``pdl`` is."""
        from punica_kernels.gpu.all_reduce_norm import all_reduce_add_rms_norm

        all_reduce_add_rms_norm(end, self._memory)
