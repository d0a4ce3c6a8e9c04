"""Shares of x A B, from an adapter's pages in host memory."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.base_model.rank import Rank
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.adapters.packing import packed_num_bytes
from punica_serve.engine.adapters.random_pages import pack_random, repeated_noise
from punica_serve.engine.cpu_assist.exchange_memory import ExchangeShape, GroupShape, GroupWeights
from punica_serve.engine.cpu_assist.lora_share import HostShare
from tiny_config import tiny_config

_NUM_ROWS = 3


class Adapter:
    """Random A and B of q, k and v in host memory, all layers."""

    def __init__(self, model: ModelConfig, rank: int, dtype: torch.dtype) -> None:
        ranks = {"q_proj": rank, "k_proj": rank, "v_proj": rank}
        num_bytes = packed_num_bytes(ranks, model, dtype)
        self.host = torch.zeros(num_bytes + 4096, dtype=torch.uint8)
        numbers = repeated_noise(num_bytes // dtype.itemsize, dtype, seed=1)
        own = pack_random(self.host[4096:], numbers, ranks, model, dtype).groups["qkv"]
        self.a, self.b = own.a, own.b
        groups = tuple(GroupShape(g.name, g.in_features, g.out_offsets) for g in model.spec.groups)
        name = str(dtype).removeprefix("torch.")
        self.shape = ExchangeShape(name, model.num_hidden_layers, groups, _NUM_ROWS)
        starts = [part.data_ptr() - self.host.data_ptr() for part in (own.a, own.b)]
        rest = [GroupWeights()] * (len(groups) - 1)
        self.weights = (GroupWeights(starts[0], starts[1], len(own.a)), *rest)

    def delta(self, x: Tensor, layer: int) -> Tensor:
        """The delta of x, without shares."""
        group = self.shape.groups[0]
        delta = torch.zeros(len(x), group.out_features, dtype=torch.float64)
        for page in range(len(self.a)):
            for number, (left, right) in enumerate(pairwise(group.out_offsets)):
                v = x.double() @ self.a[page, layer, number].double().T
                delta[:, left:right] += v @ self.b[page, layer, :, left:right].double()
        return delta

    def divided_delta(self, x: Tensor, layer: int, count: int) -> Tensor:
        """The same by so many shares: all of the first products, then all of the second ones."""
        group, num_ranks = self.shape.groups[0], 8 * len(self.a)
        v = torch.full((group.num_slices * num_ranks, len(x)), torch.nan, dtype=x.dtype)
        delta = torch.full((len(x), group.out_features), torch.nan, dtype=x.dtype)
        shares = [
            HostShare(self.host, self.shape, self.weights, position, count).fetch(layer, 0) for position in range(count)
        ]
        for share in shares:
            share.shrink(v, x)
        for share in shares:
            share.expand(delta, v)
        return delta


@pytest.mark.parametrize("rank", [4, 8, 12, 64])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 32])
def test_shares_are_x_a_b_together(tiny_model: ModelConfig, rank: int, count: int) -> None:
    """With the fewest ranks, or columns, some of 32 processes have none."""
    adapter, layer = Adapter(tiny_model, rank, torch.float32), tiny_model.num_hidden_layers - 1
    x = torch.randn(_NUM_ROWS, adapter.shape.groups[0].in_features)
    delta, found = adapter.delta(x, layer), adapter.divided_delta(x, layer, count).double()
    torch.testing.assert_close(found, delta, rtol=1e-4, atol=1e-3)


def test_shares_of_a_rank_of_a_group_are_its_own_columns() -> None:
    share = EngineConfig(model="model").share_of(tiny_config(), Rank(1, 2))
    adapter = Adapter(share, 12, torch.float32)
    x = torch.randn(_NUM_ROWS, adapter.shape.groups[0].in_features)
    delta, found = adapter.delta(x, 0), adapter.divided_delta(x, 0, 3).double()
    assert delta.shape[1] < Adapter(tiny_config(), 12, torch.float32).shape.groups[0].out_features
    torch.testing.assert_close(found, delta, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("count", [1, 3])
def test_v_is_as_precise_as_the_model(tiny_model: ModelConfig, count: int) -> None:
    adapter = Adapter(tiny_model, 12, torch.bfloat16)
    x = torch.randn(_NUM_ROWS, adapter.shape.groups[0].in_features).bfloat16()
    delta, found = adapter.delta(x, 0), adapter.divided_delta(x, 0, count).double()
    torch.testing.assert_close(found, delta, rtol=0.02, atol=0.02 * float(delta.abs().max()))


def test_no_weight_is_in_two_shares(tiny_model: ModelConfig) -> None:
    adapter = Adapter(tiny_model, 20, torch.float32)
    shares = [HostShare(adapter.host, adapter.shape, adapter.weights, position, 3).fetch(1, 0) for position in range(3)]
    assert sum(share.a.numel() for share in shares) == adapter.a[:, 1].numel()
    assert sum(share.b.numel() for share in shares) == adapter.b[:, 1].numel()
    assert [share.ranks.start for share in shares[1:]] == [share.ranks.stop for share in shares[:-1]]
    assert [share.columns.start for share in shares[1:]] == [share.columns.stop for share in shares[:-1]]
