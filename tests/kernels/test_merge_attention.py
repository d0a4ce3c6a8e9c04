"""The merge of attention's parts: torch's, and Triton's on a GPU or, on small shapes, in Triton's interpreter."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from punica_kernels import merge_attention as public
from punica_kernels.gpu import merge_attention as triton

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
#: The parts are rounded before they are merged, and the merged row once more.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3}
GPU_TOLERANCES = {**TOLERANCES, torch.bfloat16: 3e-2}
#: Keys in each part of a row: without copies, with one, with several; a last part of one key.
PARTS = [[9], [4, 5], [1], [3, 3, 3, 1], [2, 1]]

Merge = Callable[[Tensor, Tensor, Tensor], None]


def check(merge: Merge, heads: int, head_dim: int, dtype: torch.dtype) -> None:
    """Against attention over all keys at once, with scores so large that their exponentials overflow float32."""
    expected, own, copies = [], [], []
    for lengths in PARTS:
        scores = 200 * torch.randn(sum(lengths), heads, device=DEVICE).double()
        values = torch.randn(sum(lengths), heads, head_dim, device=DEVICE).double()
        expected.append((scores.softmax(0)[:, :, None] * values).sum(0))
        parts = [
            ((part.softmax(0)[:, :, None] * of).sum(0), part.logsumexp(0) / torch.tensor(2.0).log())
            for part, of in zip(scores.split(lengths), values.split(lengths), strict=True)
        ]
        own.append(parts[0])
        copies += parts[1:]
    copies.append((torch.full_like(own[0][0], torch.nan), torch.full_like(own[0][1], torch.nan)))  # padding
    out = torch.stack([result for result, _ in (*own, *copies)]).to(dtype)
    log_sums = torch.stack([log_sum for _, log_sum in (*own, *copies)]).float()
    starts = torch.tensor([0, *(len(lengths) - 1 for lengths in PARTS)], device=DEVICE).cumsum(0).to(torch.int32)
    whole = out[[0, 2]].clone()
    merge(out, log_sums, starts)
    tolerance = GPU_TOLERANCES[dtype]
    torch.testing.assert_close(out[: len(PARTS)].double(), torch.stack(expected), rtol=tolerance, atol=tolerance)
    assert torch.equal(out[[0, 2]], whole)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 1), (6, 20), (4, 64)])
@pytest.mark.parametrize("merge", [public.merge_attention, triton.merge_attention], ids=["public", "triton"])
def test_merged_parts_are_the_attention_to_all_keys(
    merge: Merge, heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    check(merge, heads, head_dim, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_TOLERANCES)
def test_on_a_gpu(dtype: torch.dtype) -> None:
    check(lambda *tensors: triton.merge_attention(*tensors, chained=True), 32, 128, dtype)


def test_sums_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="log_sums"):
        public.merge_attention(torch.zeros(2, 3, 4), torch.zeros(2, 4), torch.zeros(3, dtype=torch.int32))
