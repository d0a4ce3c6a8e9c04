"""Ranks that exchange rows in one launch, in Triton's interpreter: `peer_ranks.py FOLDER INDEX SIZE CASES`.

Each maps the pieces of all, runs so many cases in one order, and leaves what it has computed in the folder.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from punica_kernels.block_end import BlockEnd
from punica_kernels.gpu.all_reduce_norm import all_reduce_add_rms_norm
from punica_kernels.peer_memory import PeerMemory, piece_bytes
from triton_interpreter import fast_interpreter

EPS = 1e-5
MAX_ROWS, WIDTH, DTYPE = 256, 70, torch.float16
#: A program has more rows than one in the larger steps.
_MAX_PROGRAMS = 5
#: Seconds on a GPU, minutes in the interpreter.
_MAX_LOOKS = 1 << 24


@dataclass(frozen=True, slots=True)
class Case:
    """One exchange."""

    num_rows: int
    width: int = WIDTH
    dtype: torch.dtype = DTYPE
    splits: int | None = 2
    delta_dtype: torch.dtype | None = None
    weight_dtype: torch.dtype | None = None
    with_added_weight: bool = False


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of one rank in a case. Only the summands differ between ranks."""

    x: Tensor
    delta: Tensor | None
    residual: Tensor
    weight: Tensor
    added_weight: Tensor | None


#: Both places of each row, used again, with steps of fewer rows between.
CASES = (
    Case(3),
    Case(1, splits=None, delta_dtype=DTYPE),
    Case(7, delta_dtype=torch.float32),
    Case(7, weight_dtype=torch.float32, with_added_weight=True),
    Case(2, splits=3, delta_dtype=DTYPE, weight_dtype=torch.float32),
    Case(33, with_added_weight=True, delta_dtype=DTYPE),
    Case(1, splits=1),
    Case(MAX_ROWS),
)


def inputs_of(case: Case, rank: int, device: str = "cpu") -> Inputs:
    """The same in every process."""

    def normal(seed: int, *shape: int, dtype: torch.dtype) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return (torch.randn(*shape, generator=generator) * 3).to(dtype).to(device)

    rows = (case.num_rows, case.width)
    splits, weight_dtype = case.splits, case.weight_dtype or case.dtype
    return Inputs(
        normal(rank, *rows, dtype=case.dtype) if splits is None else normal(rank, splits, *rows, dtype=torch.float32),
        normal(100 + rank, *rows, dtype=case.delta_dtype) if case.delta_dtype else None,
        normal(200, *rows, dtype=case.dtype),
        normal(300, case.width, dtype=weight_dtype),
        normal(400, case.width, dtype=weight_dtype) if case.with_added_weight else None,
    )


def expected(case: Case, size: int) -> Tensor:
    """The residual in float64."""
    ranks = [inputs_of(case, rank) for rank in range(size)]
    total = torch.zeros(case.num_rows, case.width, dtype=torch.float64)
    for own in ranks:
        part = own.x.double() if case.splits is None else own.x.double().sum(0)
        total += (part if own.delta is None else part + own.delta.double()).to(case.dtype)
    if ranks[0].added_weight is not None:
        total = norm(total, ranks[0].added_weight)
    return ranks[0].residual.double() + total


def norm(x: Tensor, weight: Tensor) -> Tensor:
    """In float64."""
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


class Exchange:
    """One rank's call of a case, with all its tensors, so that it is a launch and nothing else."""

    def __init__(self, case: Case, memory: PeerMemory, device: str = "cpu") -> None:
        own = inputs_of(case, memory.rank, device)
        self._memory = memory
        self._inputs = own
        self.residual = own.residual.clone()
        self.out = torch.full_like(own.residual, torch.nan)

    def __call__(self) -> None:
        own = self._inputs
        weights = (own.weight, EPS, own.delta, own.added_weight)
        end = BlockEnd(self.out, own.x, self.residual, *weights)
        all_reduce_add_rms_norm(end, self._memory, max_looks=_MAX_LOOKS)

    def restart(self) -> None:
        """Makes it do the same once more."""
        self.residual.copy_(self._inputs.residual)

    @property
    def results(self) -> tuple[Tensor, Tensor]:
        """The residual and the normed rows of this rank."""
        return self.residual, self.out


def main(folder: str, index: str, size: str, num_cases: str) -> None:
    torch.set_num_threads(1)
    num_bytes = piece_bytes(MAX_ROWS, WIDTH, DTYPE)
    files = [f"{folder}/piece-{rank}" for rank in range(int(size))]
    pieces = [torch.from_file(file, shared=True, size=num_bytes, dtype=torch.uint8) for file in files]
    memory = PeerMemory.of_pieces(pieces, int(index), MAX_ROWS, WIDTH, DTYPE, _MAX_PROGRAMS)
    exchanges = [Exchange(case, memory) for case in CASES[: int(num_cases)]]
    with fast_interpreter():
        for exchange in exchanges:
            exchange()
    torch.save([exchange.results for exchange in exchanges], Path(folder) / f"results-{index}")


if __name__ == "__main__":
    main(*sys.argv[1:])
