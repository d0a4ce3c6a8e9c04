import numpy as np
import pytest
import torch

from punica_serve.adapters.adapter import HostTensor


def bfloat16(*values: float) -> HostTensor:
    bits = torch.tensor(values, dtype=torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    return HostTensor("BF16", bits)


def test_bfloat16_values_are_exact() -> None:
    values = (0.0, -0.0, 1.0, -2.5, 3.0e38, 1.0e-40)
    expected = torch.tensor(values, dtype=torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(bfloat16(*values).float32().view(np.uint32), expected.view(np.uint32))


def test_float16_values_are_exact() -> None:
    values = np.array([[1.5, -65504.0], [6e-8, 0.0]], dtype=np.float16)
    tensor = HostTensor("F16", values)
    assert tensor.shape == (2, 2)
    np.testing.assert_array_equal(tensor.float32(), values.astype(np.float32))


def test_float32_is_not_copied() -> None:
    values = np.ones((2, 3), dtype=np.float32)
    assert HostTensor("F32", values).float32() is values


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_every_dtype_knows_what_is_not_finite(bad: float) -> None:
    assert not bfloat16(1.0, bad).is_finite()
    assert not HostTensor("F16", np.array([1.0, bad], np.float16)).is_finite()
    assert not HostTensor("F32", np.array([1.0, bad], np.float32)).is_finite()


def test_the_largest_values_are_finite() -> None:
    assert bfloat16(3.3e38, -3.3e38).is_finite()
    assert HostTensor("F16", np.array([65504.0], np.float16)).is_finite()
    assert HostTensor("F32", np.array([np.finfo(np.float32).max])).is_finite()
