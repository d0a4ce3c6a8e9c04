"""A layer's exchange by FlashInfer: one kernel sums over ranks, adds the residual and norms, behind one of ours.

Its backend ``trtllm`` is taken, whose ranks write to memory that torch maps (`mapped_memory`), without multicast. Up to
a size of its own, all send their rows to all (one shot); beyond, each adds up its part for all (two shots). Both add in
the order of ranks: the same bits on each rank and at each repetition.

Its kernels wait for the other ranks without a limit, as NCCL's do in CUDA graphs: the start bounds the wait of its
check, and who watches the group ends it as a whole. They take launches that do not overlap (no PDL).
"""

import torch

from punica_kernels.block_end import BlockEnd
from punica_kernels.partial_sums import sum_parts
from punica_serve.engine.ranks.flashinfer_module import has_whole_warps
from punica_serve.engine.ranks.mapped_memory import mappings
from punica_serve.engine.ranks.torch_collectives import TorchCollectives

#: Mappings that FlashInfer makes for a workspace: rows, flags, and rows that say themselves that they have come.
_NUM_MAPPINGS = 3
#: The most bytes of a rank's rows, since a workspace takes 4 times as many for each rank. In float32 on two ranks, two
#: shots would need more than it has, which FlashInfer takes from twice as many bytes on.
MAX_BYTES = 64 << 20


class _LaterMeeting:
    """Stands for FlashInfer's barrier, which has no deadline: the ranks of a group meet by votes."""

    def barrier(self) -> None:
        torch.cuda.synchronize()  # the workspace is filled


class FlashInferNorm:
    """The workspace of one group for rows of one width and dtype. All its exchanges run on one stream."""

    def __init__(
        self,
        collectives: TorchCollectives,
        max_bytes: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """All ranks must, and meet once more before the first exchange. ``max_bytes``: of a rank's rows.

        Its module must be compiled, or this compiles it. Raises RuntimeError if the GPUs can't map each other's memory,
        and for rows that it can't exchange.
        """
        if max_bytes > MAX_BYTES or not has_whole_warps(width * dtype.itemsize):
            raise RuntimeError(f"FlashInfer exchanges no {max_bytes:,} bytes in rows of {width} numbers")
        from flashinfer.comm import create_allreduce_fusion_workspace

        rank = collectives.rank
        self._width, self._dtype = width, dtype
        self._max_rows = max(1, max_bytes // (width * dtype.itemsize))
        with torch.cuda.device(device), mappings(collectives, _NUM_MAPPINGS):
            self._workspace = create_allreduce_fusion_workspace(
                "trtllm",
                world_size=rank.size,
                rank=rank.index,
                max_token_num=self._max_rows,
                hidden_dim=width,
                dtype=dtype,
                comm_backend=_LaterMeeting(),
                group=collectives.group,
            )

    def takes(self, end: BlockEnd) -> bool:
        """See ``LayerExchange.takes``."""
        residual = end.residual
        is_plain = end.added_weight is None and end.weight.dtype == self._dtype
        fits = 0 < residual.shape[0] <= self._max_rows and residual.shape[1] == self._width
        return is_plain and fits and residual.dtype == self._dtype and residual.is_contiguous()

    def __call__(self, end: BlockEnd, *, pdl: bool) -> None:
        """See ``LayerExchange``. ``end.out``: contiguous. ``pdl``: of the kernel that sums the parts."""
        from flashinfer.comm import AllReduceFusionPattern, allreduce_fusion

        assert end.added_weight is None
        part = torch.empty_like(end.residual)
        sum_parts(part, end.x, end.delta, pdl=pdl)
        allreduce_fusion(
            part,
            self._workspace,
            AllReduceFusionPattern.kARResidualRMSNorm,
            output=part,  # it writes nothing there, but would allocate memory for it
            residual_in=end.residual,
            residual_out=end.residual,
            norm_out=end.out,
            rms_gamma=end.weight,
            rms_eps=end.eps,
            fp32_acc=True,
        )
