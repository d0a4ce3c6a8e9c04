"""Tokens that the step before has sampled: in torch, and in Triton on a GPU or in its interpreter."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from punica_kernels import sampled_tokens as public
from punica_kernels.gpu import sampled_tokens as triton

GPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WAYS = [pytest.param(public.fill_sampled, torch.device("cpu"), id="torch"), pytest.param(triton.fill_sampled, GPU)]


@pytest.mark.parametrize(("fill_sampled", "device"), WAYS)
@pytest.mark.parametrize("num_rows", [0, 1, 31, 300])
def test_rows_with_a_source_get_the_token_sampled_there(
    fill_sampled: Callable[[Tensor, Tensor, Tensor], None], device: torch.device, num_rows: int
) -> None:
    sampled_ids = torch.randint(0, 1 << 20, (17,), device=device)
    token_ids = torch.randint(0, 1 << 20, (num_rows,), dtype=torch.int32, device=device)
    sources = torch.randint(-1, 17, (num_rows,), dtype=torch.int32, device=device)
    pairs = zip(token_ids.tolist(), sources.tolist(), strict=True)
    expected = [token_id if source < 0 else int(sampled_ids[source]) for token_id, source in pairs]
    fill_sampled(token_ids, sources, sampled_ids)
    assert token_ids.tolist() == expected


@pytest.mark.parametrize(("fill_sampled", "device"), WAYS)
def test_a_sampled_id_of_minus_one_becomes_a_token_of_the_vocabulary(
    fill_sampled: Callable[[Tensor, Tensor, Tensor], None], device: torch.device
) -> None:
    token_ids = torch.tensor([5, 6], dtype=torch.int32, device=device)
    fill_sampled(token_ids, torch.tensor([0, -1], dtype=torch.int32, device=device), torch.tensor([-1], device=device))
    assert token_ids.tolist() == [0, 6]


@pytest.mark.parametrize(("argument", "value"), [("sources", torch.zeros(3)), ("sampled_ids", torch.zeros(2, 2))])
def test_arguments_that_do_not_fit_are_named(argument: str, value: Tensor) -> None:
    arguments: dict[str, Any] = {
        name: torch.zeros(2, dtype=torch.int32) for name in ("token_ids", "sources", "sampled_ids")
    }
    with pytest.raises(ValueError, match=f"^{argument} must"):
        public.fill_sampled(**(arguments | {argument: value}))
