import pytest
import torch

from punica_serve.base_model.rank import SINGLE, Rank
from punica_serve.bench.lone_rank import LoneRank, parse_shard, stand_in
from punica_serve.errors import ConfigError
from punica_serve.models.collectives import SINGLE_RANK


def test_a_shard_is_a_rank_and_the_size_of_its_group() -> None:
    assert parse_shard("3/8") == Rank(3, 8)


@pytest.mark.parametrize("text", ["8/8", "0", "0/0", "-1/2", "a/b", ""])
def test_other_shards_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write a rank and the size of its group"):
        parse_shard(text)


def test_an_exchange_is_a_copy_of_as_many_bytes() -> None:
    lone, tensor = LoneRank(Rank(0, 4)), torch.arange(6.0).view(2, 3)
    assert stand_in(SINGLE) is SINGLE_RANK
    reduced = lone.all_reduce(tensor)
    assert torch.equal(reduced, tensor) and reduced.data_ptr() != tensor.data_ptr()
    assert torch.equal(lone.all_gather(tensor), torch.stack([tensor] * 4))
    shares = torch.arange(8.0).view(4, 2)
    received = lone.all_to_all(shares)
    assert torch.equal(received, shares) and received.data_ptr() != shares.data_ptr()
