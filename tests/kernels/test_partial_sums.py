import pytest
import torch

from punica_kernels.gpu import partial_sums as gpu
from punica_kernels.partial_sums import sum_parts

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("with_delta", [False, True])
@pytest.mark.parametrize("splits", [None, 2, 4])
@pytest.mark.parametrize("kernel", [sum_parts, gpu.sum_parts])
def test_all_parts_are_added_and_rounded_once(kernel: object, splits: int | None, with_delta: bool) -> None:
    assert callable(kernel)
    parts = torch.randn(*(() if splits is None else (splits,)), 3, 1030, device=DEVICE)[..., :1027]
    delta = torch.randn(3, 1027, device=DEVICE).half() if with_delta else None
    out = torch.full((3, 1027), torch.nan, dtype=torch.float16, device=DEVICE)
    kernel(out, parts, delta)
    total = parts.double() if splits is None else parts.double().sum(0)
    expected = total if delta is None else total + delta.double()
    torch.testing.assert_close(out.double(), expected, rtol=1e-3, atol=1e-3)


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match="delta must be"):
        sum_parts(torch.empty(2, 4), torch.empty(2, 4), torch.empty(2, 3))
