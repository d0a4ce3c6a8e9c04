"""Kernels launched with PDL, as a layer launches them, give the same results as one by one."""

import pytest
import torch
from torch import Tensor

from punica_kernels.activation import silu_and_mul
from punica_kernels.block_end import BlockEnd
from punica_kernels.linear import linear
from punica_kernels.norm import add_rms_norm, rms_norm

ROWS, HIDDEN, WIDE, LAYERS, REPLAYS = 24, 1024, 2816, 6, 40
EPS = 1e-5


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


class _FeedForward:
    """Layers of random weights, and the norm that begins and ends each."""

    def __init__(self) -> None:
        self.norm, self.x = _random(HIDDEN), _random(ROWS, HIDDEN)
        self.gate_up = [_random(2 * WIDE, HIDDEN) / HIDDEN**0.5 for _ in range(LAYERS)]
        self.down = [_random(HIDDEN, WIDE) / WIDE**0.5 for _ in range(LAYERS)]

    def __call__(self, *, pdl: bool) -> Tensor:
        residual, hidden = self.x.clone(), torch.empty_like(self.x)
        # No PDL launch itself; the kernel after it may start early all the same.
        rms_norm(hidden, residual, self.norm, EPS)
        for gate_up, down in zip(self.gate_up, self.down, strict=True):
            both = linear(hidden, gate_up, pdl=pdl)
            activated = both.new_empty(ROWS, WIDE)
            silu_and_mul(activated, both, pdl=pdl)
            partial = linear(activated, down, split_k=True, pdl=pdl)
            add_rms_norm(BlockEnd(hidden, partial, residual, self.norm, EPS), pdl=pdl)
        return hidden


@pytest.mark.gpu
def test_a_chain_gives_what_its_kernels_give_one_by_one() -> None:
    layers = _FeedForward()
    layers(pdl=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pdl = layers(pdl=True)
    for _ in range(REPLAYS):
        layers.x.normal_()
        graph.replay()
        assert torch.equal(pdl, layers(pdl=False))
