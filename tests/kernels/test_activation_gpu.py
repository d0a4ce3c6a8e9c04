"""The gated activations in Triton: on a GPU, or in Triton's interpreter on small shapes where there is none."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from punica_kernels.gpu.activation import gelu_and_mul, silu_and_mul

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
#: Relative; half precision rounds twice, silu(gate) and the result.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3}
GPU_TOLERANCES = {**TOLERANCES, torch.bfloat16: 1.6e-2}


def check(num_rows: int, width: int, dtype: torch.dtype, delta_dtype: torch.dtype | None) -> None:
    gate_up = (torch.randn(num_rows, 2 * width + 5, device=DEVICE) * 4).to(dtype)[:, : 2 * width]
    delta = torch.randn(num_rows, 2 * width, device=DEVICE).to(delta_dtype) if delta_dtype else None
    gate, up = (gate_up.double() + (0 if delta is None else delta.double())).chunk(2, dim=1)
    for pdl in (False, True):
        out = torch.full((num_rows, width), torch.nan, dtype=dtype, device=DEVICE)
        silu_and_mul(out, gate_up, delta, pdl=pdl)
        expected = gate * gate.sigmoid() * up
        torch.testing.assert_close(out.double(), expected, rtol=GPU_TOLERANCES[dtype], atol=1e-5)
        gelu_and_mul(out, gate_up, delta, pdl=pdl)
        expected = functional.gelu(gate, approximate="tanh") * up
        torch.testing.assert_close(out.double(), expected, rtol=GPU_TOLERANCES[dtype], atol=1e-5)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("delta_dtype", [None, torch.float16, torch.float32])
@pytest.mark.parametrize(("num_rows", "width"), [(1, 1), (2, 1300), (3, 64)])
def test_gated_activations(num_rows: int, width: int, delta_dtype: torch.dtype | None, dtype: torch.dtype) -> None:
    check(num_rows, width, dtype, delta_dtype)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
def test_extreme_gates_stay_finite() -> None:
    gate_up = torch.tensor([[60000.0, -60000.0, 0.0, 1.0, 1.0, 1.0]], dtype=torch.float16, device=DEVICE)
    out = torch.empty(1, 3, dtype=torch.float16, device=DEVICE)
    silu_and_mul(out, gate_up)
    assert out.tolist() == [[60000.0, 0.0, 0.0]]


def test_no_rows() -> None:
    out: Tensor = torch.empty(0, 4, device=DEVICE)
    silu_and_mul(out, torch.empty(0, 8, device=DEVICE))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_TOLERANCES)
@pytest.mark.parametrize(("num_rows", "width"), [(1, 11008), (33, 13824), (700, 11008), (5, 28672), (32, 3584)])
def test_model_widths(num_rows: int, width: int, dtype: torch.dtype) -> None:
    for delta_dtype in (None, dtype, torch.float32):
        check(num_rows, width, dtype, delta_dtype)
