"""A rank that ends blocks on its GPU, and compares them with float64: `norm_rank.py STORE INDEX SIZE WAY DTYPE`.

WAY: of all that a layer does for an exchange, `fused` or `flashinfer`.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from group_rank import joined
from punica_kernels.block_end import BlockEnd
from punica_serve.base_model.rank import Rank
from punica_serve.engine.ranks.flashinfer_norm import FlashInferNorm
from punica_serve.engine.ranks.fused_norm import FusedNorm
from punica_serve.engine.ranks.layer_exchange import LayerExchange
from punica_serve.engine.ranks.torch_collectives import TorchCollectives

_WIDTH, _MAX_ROWS, _SPLITS, _EPS = 4096, 64, 2, 1e-5
#: The rows of the steps' graphs, in the order in which they are replayed: more and fewer take turns.
_NUMS_ROWS = (1, 64, 3, 17)
_NUM_ROUNDS = 5


class _Step:
    """Blocks of so many rows: the tensors that their graph reads and writes."""

    def __init__(self, num_rows: int, dtype: torch.dtype, device: torch.device) -> None:
        def empty(*shape: int, of: torch.dtype = dtype) -> Tensor:
            return torch.empty(*shape, dtype=of, device=device)

        self.x = empty(_SPLITS, num_rows, _WIDTH, of=torch.float32)
        self.delta, self.residual, self.out = (empty(num_rows, _WIDTH) for _ in range(3))
        self.weight = empty(_WIDTH)
        self.end = BlockEnd(self.out, self.x, self.residual, self.weight, _EPS, self.delta)

    def fill(self, seed: int, rank: Rank) -> tuple[Tensor, Tensor]:
        """Draws the inputs of all ranks. Returns float64: what ranks send, by rank, and the residual."""
        draw = torch.Generator(self.x.device).manual_seed(seed)
        sent = []
        for index in range(rank.size):
            x, delta = (torch.randn(like.shape, generator=draw, device=like.device) for like in (self.x, self.delta))
            delta = delta.to(self.delta.dtype)
            sent.append((x.double().sum(0) + delta.double()).to(delta.dtype).double())
            if index == rank.index:
                self.x.copy_(x)
                self.delta.copy_(delta)
        self.residual.copy_(torch.randn(self.residual.shape, generator=draw, device=self.x.device))
        self.weight.copy_(torch.randn(_WIDTH, generator=draw, device=self.x.device))
        return torch.stack(sent), self.residual.double()

    def run(self, exchange: LayerExchange) -> None:
        exchange(self.end, pdl=False)

    def check(self, sent: Tensor, residual: Tensor) -> None:
        """Each rounding is half a unit in the last place at most: of what is sent, of the sums, of the norm."""
        eps = torch.finfo(self.out.dtype).eps
        error = (self.residual.double() - (sent.sum(0) + residual)).abs()
        assert bool((error <= 2 * eps * (sent.abs().sum(0) + residual.abs()) + 1e-5).all()), f"{error.max()}"
        summed = self.residual.double()
        normed = summed * (summed.square().mean(1, keepdim=True) + _EPS).rsqrt() * self.weight.double()
        torch.testing.assert_close(self.out.double(), normed, rtol=1.1 * eps + 1e-5, atol=1e-5)


def _graph_of(step: _Step, exchange: LayerExchange) -> torch.cuda.CUDAGraph:
    step.run(exchange)  # loads its kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run(exchange)
    return graph


def _compare(collectives: TorchCollectives, way: str, dtype: torch.dtype, device: torch.device) -> None:
    max_bytes = _MAX_ROWS * _WIDTH * dtype.itemsize
    make: type[FlashInferNorm] | type[FusedNorm] = FlashInferNorm if way == "flashinfer" else FusedNorm
    exchange = make(collectives, max_bytes, _WIDTH, dtype, device)
    dist.barrier(collectives.group)
    steps = [_Step(num_rows, dtype, device) for num_rows in _NUMS_ROWS]
    for step in steps:
        assert exchange.takes(step.end)
    assert not exchange.takes(_Step(_MAX_ROWS + 1, dtype, device).end)
    graphs = [_graph_of(step, exchange) for step in steps]
    for number in range(_NUM_ROUNDS):
        for step, graph in zip(steps, graphs, strict=True):
            results = []
            for _ in range(2):
                expected = step.fill(number, collectives.rank)
                graph.replay()
                torch.cuda.synchronize()
                step.check(*expected)
                results.append(torch.stack([step.out, step.residual]))
            assert torch.equal(*results), "it repeats bit by bit"
            of_all = collectives.all_gather(results[0])
            assert all(torch.equal(each, results[0]) for each in of_all), "all ranks have the same bits"


def main(store: str, index: str, size: str, way: str, dtype: str) -> None:
    rank = Rank(int(index), int(size))
    with joined(Path(store), rank, "cuda") as collectives:
        _compare(collectives, way, getattr(torch, dtype), torch.device("cuda", rank.index))


if __name__ == "__main__":
    main(*sys.argv[1:])
