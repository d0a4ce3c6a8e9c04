"""The first of two ranks on a GPU, whose other one does not come: ends well if CUDA reports its wait as an error."""

import os
import sys

import torch

from peer_ranks import EPS, Case, inputs_of
from punica_kernels.block_end import BlockEnd
from punica_kernels.gpu.all_reduce_norm import all_reduce_add_rms_norm
from punica_kernels.peer_memory import PeerMemory, piece_bytes


def main() -> int:
    case = Case(2)
    pieces = [torch.zeros(piece_bytes(2, case.width, case.dtype), dtype=torch.uint8, device="cuda") for _ in range(2)]
    memory = PeerMemory.of_pieces(pieces, 0, 2, case.width, case.dtype, 2)
    own = inputs_of(case, 0, "cuda")
    out = torch.empty_like(own.residual)
    all_reduce_add_rms_norm(BlockEnd(out, own.x, own.residual, own.weight, EPS), memory, max_looks=1000)
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return 0 if "assert" in str(error) else 1
    return 1


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # nothing on the GPU can be freed any more
