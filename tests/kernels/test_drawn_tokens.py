"""Tokens that the step before has drawn: torch's way, and Triton's on a GPU or in its interpreter."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from punica_kernels import drawn_tokens as public
from punica_kernels.gpu import drawn_tokens as triton

GPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WAYS = [pytest.param(public.place_drawn, torch.device("cpu"), id="torch"), pytest.param(triton.place_drawn, GPU)]


@pytest.mark.parametrize(("place_drawn", "device"), WAYS)
@pytest.mark.parametrize("num_rows", [0, 1, 31, 300])
def test_rows_with_a_source_get_what_was_drawn_there(
    place_drawn: Callable[[Tensor, Tensor, Tensor], None], device: torch.device, num_rows: int
) -> None:
    draws = torch.randint(0, 1 << 20, (17,), device=device)
    token_ids = torch.randint(0, 1 << 20, (num_rows,), dtype=torch.int32, device=device)
    sources = torch.randint(-1, 17, (num_rows,), dtype=torch.int32, device=device)
    pairs = zip(token_ids.tolist(), sources.tolist(), strict=True)
    expected = [token_id if source < 0 else int(draws[source]) for token_id, source in pairs]
    place_drawn(token_ids, sources, draws)
    assert token_ids.tolist() == expected


@pytest.mark.parametrize(("place_drawn", "device"), WAYS)
def test_a_draw_of_logits_that_were_not_finite_is_a_token_of_the_vocabulary(
    place_drawn: Callable[[Tensor, Tensor, Tensor], None], device: torch.device
) -> None:
    token_ids = torch.tensor([5, 6], dtype=torch.int32, device=device)
    place_drawn(token_ids, torch.tensor([0, -1], dtype=torch.int32, device=device), torch.tensor([-1], device=device))
    assert token_ids.tolist() == [0, 6]


@pytest.mark.parametrize(("argument", "value"), [("sources", torch.zeros(3)), ("draws", torch.zeros(2, 2))])
def test_arguments_that_do_not_fit_are_named(argument: str, value: Tensor) -> None:
    arguments: dict[str, Any] = {name: torch.zeros(2, dtype=torch.int32) for name in ("token_ids", "sources", "draws")}
    with pytest.raises(ValueError, match=f"^{argument} must"):
        public.place_drawn(**(arguments | {argument: value}))
