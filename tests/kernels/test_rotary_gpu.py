"""rotary_append in Triton: on a GPU, or in Triton's interpreter on small shapes where there is none."""

import pytest
import torch
from torch import Tensor

from punica_kernels.gpu.rotary import rotary_append
from punica_kernels.head_norms import HeadNorms
from punica_kernels.rotary import rotary_tables

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
#: Relative to the largest of the values: one rounding.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 1e-3}
GPU_TOLERANCES = {**TOLERANCES, torch.bfloat16: 8e-3}
PAGE_SIZE, MAX_POSITION = 4, 128
EPS = 1e-6


def rotate(heads: Tensor, angles_cos: Tensor, angles_sin: Tensor) -> Tensor:
    first, second, kept = heads.tensor_split((n := angles_cos.shape[-1], 2 * n), dim=-1)
    return torch.cat((first * angles_cos - second * angles_sin, second * angles_cos + first * angles_sin, kept), dim=-1)


def norm(heads: Tensor, weight: Tensor) -> Tensor:
    return heads / (heads.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


def check(
    heads: int,
    kv_heads: int,
    head_dim: int,
    num_rows: int,
    dtype: torch.dtype,
    delta_dtype: torch.dtype | None = None,
    *,
    has_bias: bool = False,
    has_norms: bool = False,
    rotated: int | None = None,
    splits: int | None = None,
) -> None:
    """Against float64, on poisoned outputs: what no row owns must stay NaN. `splits`: of partial sums, if any."""
    width = (heads + 2 * kv_heads) * head_dim
    if splits is None:
        qkv = torch.randn(num_rows, width + 7, device=DEVICE).to(dtype)[:, :width]
    else:
        qkv = torch.randn(splits, num_rows, width, device=DEVICE)
    whole = qkv.double() if splits is None else qkv.double().sum(0)
    delta = torch.randn(num_rows, width, device=DEVICE).to(delta_dtype) if delta_dtype else None
    cos, sin = rotary_tables(1e4 ** -(torch.arange(0, rotated or head_dim, 2, device=DEVICE) / head_dim), MAX_POSITION)
    positions = torch.randint(0, MAX_POSITION, (num_rows,), device=DEVICE)
    num_pages = num_rows + 2
    slot_mapping = torch.randperm(num_pages * PAGE_SIZE, device=DEVICE)[:num_rows].to(torch.int32)
    slot_mapping[num_rows // 2] = -1

    total = (whole + (0 if delta is None else delta.double())).view(num_rows, -1, head_dim)
    bias = torch.randn(width, device=DEVICE).to(dtype) if has_bias else None
    if bias is not None:
        total = total + bias.double().view(-1, head_dim)
    q, k, v = total.split((heads, kv_heads, kv_heads), dim=1)
    weights = torch.randn(2, head_dim, device=DEVICE).to(dtype)
    norms = HeadNorms(weights[0], weights[1], EPS) if has_norms else None
    if norms is not None:
        q, k = norm(q, norms.q), norm(k, norms.k)
    row_cos, row_sin = cos.double()[positions][:, None], sin.double()[positions][:, None]
    expected_pool = torch.full((num_pages, 2, 2, PAGE_SIZE, kv_heads, head_dim), torch.nan, device=DEVICE).double()
    kept = (slot_mapping >= 0).nonzero().squeeze(1)
    pages, offsets = slot_mapping[kept].long() // PAGE_SIZE, slot_mapping[kept].long() % PAGE_SIZE
    expected_pool[pages, 1, 0, offsets] = rotate(k, row_cos, row_sin)[kept]
    expected_pool[pages, 1, 1, offsets] = v[kept]

    for index_dtype, pdl in ((torch.int64, False), (torch.int32, True)):
        q_out = torch.full((num_rows, heads, head_dim), torch.nan, dtype=dtype, device=DEVICE)
        pool = torch.full(expected_pool.shape, torch.nan, dtype=dtype, device=DEVICE)
        keys, values = pool[:, 1, 0], pool[:, 1, 1]
        where = (positions.to(index_dtype), cos, sin, keys, values, slot_mapping.to(index_dtype))
        rotary_append(q_out, qkv, *where, delta, bias, norms, pdl=pdl)
        atol = GPU_TOLERANCES[dtype]
        torch.testing.assert_close(q_out.double(), rotate(q, row_cos, row_sin), rtol=atol, atol=atol)
        torch.testing.assert_close(pool.double(), expected_pool, rtol=atol, atol=atol, equal_nan=True)
        if splits is None and delta is None and bias is None:
            assert torch.equal(pool[pages, 1, 1, offsets].double(), v[kept])


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "delta_dtype", "dtype"),
    [
        (6, 2, 20, None, torch.float32),
        (6, 2, 20, torch.float16, torch.float16),
        (6, 2, 20, torch.float32, torch.float32),
        (1, 1, 2, None, torch.float16),
        (1, 1, 2, torch.float16, torch.float32),
        (1, 1, 2, torch.float32, torch.float16),
        (9, 3, 64, None, torch.float32),
        (9, 3, 64, torch.float16, torch.float32),
        (9, 3, 64, torch.float32, torch.float16),
    ],
)
def test_rotary_append(
    heads: int, kv_heads: int, head_dim: int, delta_dtype: torch.dtype | None, dtype: torch.dtype
) -> None:
    check(heads, kv_heads, head_dim, 5, dtype, delta_dtype)


@pytest.mark.parametrize(("has_bias", "has_norms"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("delta_dtype", [None, torch.float32])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(6, 2, 20), (7, 1, 64)])
def test_bias_and_norms_of_heads(
    heads: int, kv_heads: int, head_dim: int, delta_dtype: torch.dtype | None, has_bias: bool, has_norms: bool
) -> None:
    check(heads, kv_heads, head_dim, 5, torch.float32, delta_dtype, has_bias=has_bias, has_norms=has_norms)


@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize(("head_dim", "rotated"), [(20, 14), (16, 2), (64, 48)])
def test_some_elements_of_a_head_may_be_kept(head_dim: int, rotated: int, has_norms: bool) -> None:
    check(3, 1, head_dim, 5, torch.float32, torch.float16, has_norms=has_norms, rotated=rotated)


@pytest.mark.parametrize(
    ("delta_dtype", "has_bias", "has_norms", "rotated", "splits"),
    [
        (None, False, False, 20, 2),
        (None, True, False, 14, 4),
        (None, False, True, 20, 4),
        (None, True, True, 14, 2),
        (torch.float16, False, False, 14, 4),
        (torch.float16, True, False, 20, 2),
        (torch.float16, False, True, 14, 2),
        (torch.float16, True, True, 20, 4),
    ],
)
def test_partial_sums_are_added_first(
    delta_dtype: torch.dtype | None, has_bias: bool, has_norms: bool, rotated: int, splits: int
) -> None:
    variant = {"has_bias": has_bias, "has_norms": has_norms}
    check(6, 2, 20, 5, torch.float32, delta_dtype, **variant, rotated=rotated, splits=splits)


@pytest.mark.parametrize("splits", [2, 4])
def test_partial_sums_of_half_precision_are_rounded_once(splits: int) -> None:
    check(9, 3, 64, 5, torch.float16, torch.float16, splits=splits)


def test_values_keep_their_bits_beside_what_is_not_finite() -> None:
    qkv = torch.tensor([[1.0, 2.0, 3.0, 4.0, torch.inf, 5.0]], device=DEVICE)
    pool = torch.zeros(2, 1, 1, 1, 2, device=DEVICE)
    cos, sin = rotary_tables(torch.ones(1, device=DEVICE), 3)
    index = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    rotary_append(torch.empty(1, 1, 2, device=DEVICE), qkv, index + 2, cos, sin, pool[0], pool[1], index)
    assert pool[1].flatten().tolist() == [torch.inf, 5.0]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_TOLERANCES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(32, 32, 128), (32, 8, 128), (40, 40, 128), (64, 8, 256), (8, 1, 128)]
)
@pytest.mark.parametrize("num_rows", [1, 33, 600])
def test_model_shapes(num_rows: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    for delta_dtype in (None, dtype, torch.float32):
        check(heads, kv_heads, head_dim, num_rows, dtype, delta_dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_TOLERANCES)
@pytest.mark.parametrize(("heads", "kv_heads", "splits"), [(32, 8, 2), (28, 4, 2), (8, 1, 4), (4, 1, 4)])
@pytest.mark.parametrize("num_rows", [1, 33, 64])
def test_partial_sums_of_model_shapes(
    num_rows: int, heads: int, kv_heads: int, splits: int, dtype: torch.dtype
) -> None:
    for delta_dtype in (None, dtype):
        for has_bias, has_norms in ((False, False), (True, False), (False, True)):
            variant = {"has_bias": has_bias, "has_norms": has_norms}
            check(heads, kv_heads, 128, num_rows, dtype, delta_dtype, **variant, splits=splits)
    check(heads, kv_heads, 128, num_rows, dtype, dtype, rotated=96, splits=splits)


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [1, 33, 600])
def test_phi_4_mini_shape(num_rows: int) -> None:
    check(24, 8, 128, num_rows, torch.bfloat16, torch.bfloat16, rotated=96)


@pytest.mark.gpu
def test_a_pool_of_more_elements_than_32_bits_count() -> None:
    kv_heads, head_dim, page_size = 32, 128, 16
    num_pages = 2**31 // (4 * page_size * kv_heads * head_dim) + 2
    pool = torch.empty(num_pages, 2, 2, page_size, kv_heads, head_dim, dtype=torch.bfloat16, device=DEVICE)
    pool[-1] = torch.nan
    qkv = torch.randn(1, 3 * kv_heads * head_dim, device=DEVICE).to(torch.bfloat16)
    cos, sin = rotary_tables(torch.ones(head_dim // 2, device=DEVICE), 1)
    q_out = torch.empty(1, kv_heads, head_dim, dtype=torch.bfloat16, device=DEVICE)
    slot_mapping = torch.tensor([num_pages * page_size - 1], device=DEVICE)
    rotary_append(q_out, qkv, torch.zeros_like(slot_mapping), cos, sin, pool[:, 1, 0], pool[:, 1, 1], slot_mapping)
    written = torch.stack((q_out[0], pool[-1, 1, 0, -1], pool[-1, 1, 1, -1]))
    assert torch.equal(written, qkv.view(3, kv_heads, head_dim))
    assert pool[-1, :, :, :-1].isnan().all() and pool[-1, 0].isnan().all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_TOLERANCES)
@pytest.mark.parametrize(("heads", "kv_heads", "has_bias"), [(28, 4, True), (40, 8, True), (32, 8, False)])
@pytest.mark.parametrize("num_rows", [1, 33, 600])
def test_qwen_shapes(num_rows: int, heads: int, kv_heads: int, has_bias: bool, dtype: torch.dtype) -> None:
    """Biases are Qwen 2's, norms of heads are Qwen 3's."""
    for delta_dtype in (None, torch.float32):
        check(heads, kv_heads, 128, num_rows, dtype, delta_dtype, has_bias=has_bias, has_norms=not has_bias)
