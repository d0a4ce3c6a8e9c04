from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from punica_kernels.head_norms import HeadNorms
from punica_kernels.rotary import rotary_append, rotary_tables

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
THETA = 10000.0
PAGE_SIZE = 4


def transformers_rotary(q: Tensor, k: Tensor, positions: Tensor, config: LlamaConfig) -> tuple[Tensor, ...]:
    """transformers wants [batch, heads, rows, head_dim]; here rows come first."""
    cos, sin = LlamaRotaryEmbedding(config)(q, positions[None])
    rotated = apply_rotary_pos_emb(q.transpose(0, 1)[None], k.transpose(0, 1)[None], cos, sin)
    return tuple(heads[0].transpose(0, 1) for heads in rotated)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 16), (6, 2, 64), (1, 1, 2)])
def test_rotation_is_transformers(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    qkv = torch.randn(9, (heads + 2 * kv_heads) * head_dim).to(dtype)
    q, k, v = qkv.view(9, -1, head_dim).split((heads, kv_heads, kv_heads), dim=1)
    positions = torch.tensor([0, 1, 2, 99, 5, 5, 511, 40, 3])
    config = LlamaConfig(
        head_dim=head_dim,
        hidden_size=heads * head_dim,
        num_attention_heads=heads,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
    )
    expected_q, expected_k = transformers_rotary(q, k, positions, config)

    inv_freq = 1.0 / THETA ** (torch.arange(0, head_dim, 2) / head_dim)
    tables = rotary_tables(inv_freq, 512)
    pool = torch.full((5, 2, 2, PAGE_SIZE, kv_heads, head_dim), torch.nan, dtype=dtype)
    slot_mapping = torch.randperm(5 * PAGE_SIZE)[:9]
    rotated = torch.empty_like(q)
    rotary_append(rotated, qkv, positions, *tables, pool[:, 1, 0], pool[:, 1, 1], slot_mapping)

    torch.testing.assert_close(rotated, expected_q, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
    cells = slot_mapping // PAGE_SIZE, slot_mapping % PAGE_SIZE
    torch.testing.assert_close(pool[:, 1, 0][cells], expected_k, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
    assert torch.equal(pool[:, 1, 1][cells], v)
    assert int(pool.isfinite().sum()) == 2 * 9 * kv_heads * head_dim


def make_arguments(**replaced: Tensor | HeadNorms) -> dict[str, Any]:
    """Three rows of 2 heads and 1 kv head; `replaced` overrides arguments."""
    cos, sin = rotary_tables(torch.tensor([1.0, 0.1]), 8)
    return {
        "q_out": torch.full((3, 2, 4), torch.nan),
        "qkv": torch.randn(3, 16),
        "positions": torch.tensor([7, 0, 3]),
        "cos": cos,
        "sin": sin,
        "keys": torch.full((2, PAGE_SIZE, 1, 4), torch.nan),
        "values": torch.full((2, PAGE_SIZE, 1, 4), torch.nan),
        "slot_mapping": torch.tensor([5, -1, 0]),
        **replaced,
    }


def test_a_row_without_a_slot_writes_its_query_alone() -> None:
    arguments = make_arguments()
    rotary_append(**arguments)
    assert arguments["q_out"].isfinite().all()
    for pool in (arguments["keys"], arguments["values"]):
        assert pool.flatten(0, 1).isfinite().all(-1).squeeze(1).nonzero().flatten().tolist() == [0, 5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_delta_is_added_first(dtype: torch.dtype) -> None:
    delta = torch.randn(3, 16).to(dtype)
    separate, added = make_arguments(), make_arguments()
    added["qkv"] = separate["qkv"] + delta
    rotary_append(**separate, delta=delta)
    rotary_append(**added)
    for name in ("q_out", "keys", "values"):
        torch.testing.assert_close(separate[name], added[name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("splits", [1, 2, 4])
def test_partial_sums_are_added_first(splits: int) -> None:
    parts, delta, bias = torch.randn(splits, 3, 16), torch.randn(3, 16), torch.randn(16)
    separate, added = make_arguments(qkv=parts), make_arguments(qkv=parts.sum(0))
    rotary_append(**separate, delta=delta, bias=bias)
    rotary_append(**added, delta=delta, bias=bias)
    for name in ("q_out", "keys", "values"):
        torch.testing.assert_close(separate[name], added[name], rtol=0, atol=0, equal_nan=True)


def test_the_bias_is_added_and_heads_are_normed_as_transformers_does() -> None:
    qkv, bias, (q_weight, k_weight) = torch.randn(3, 16), torch.randn(16), torch.randn(2, 4)
    ours, theirs = (make_arguments() for _ in range(2))
    rotary_append(**{**ours, "qkv": qkv}, bias=bias, norms=HeadNorms(q_weight, k_weight, 0.25))
    heads = (qkv + bias).view(3, 4, 4)
    for head, weight in ((slice(0, 2), q_weight), (slice(2, 3), k_weight)):
        norm = Qwen3RMSNorm(4, eps=0.25)
        norm.weight.data = weight
        heads[:, head] = norm(heads[:, head]).detach()
    rotary_append(**{**theirs, "qkv": heads.flatten(1)})
    for name in ("q_out", "keys", "values"):
        torch.testing.assert_close(ours[name], theirs[name], equal_nan=True)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("qkv", torch.zeros(3, 12)),
        ("qkv", torch.zeros(2, 2, 16)),
        ("qkv", torch.zeros(2, 1, 3, 16)),
        ("positions", torch.zeros(2, dtype=torch.int64)),
        ("cos", torch.zeros(8, 4)),
        ("sin", torch.zeros(7, 2)),
        ("keys", torch.zeros(2, PAGE_SIZE, 1, 8)),
        ("values", torch.zeros(2, PAGE_SIZE, 2, 4)),
        ("slot_mapping", torch.zeros(4, dtype=torch.int64)),
        ("delta", torch.zeros(3, 8)),
        ("bias", torch.zeros(8)),
        ("norms", HeadNorms(torch.zeros(4), torch.zeros(2), 1e-6)),
    ],
)
def test_arguments_that_do_not_fit_are_named(argument: str, value: Tensor | HeadNorms) -> None:
    with pytest.raises(ValueError, match=rf"^{argument}(\.k)? must"):
        rotary_append(**make_arguments(**{argument: value}))


def test_tables_are_of_the_frequencies_given() -> None:
    inv_freq = torch.tensor([1.0, 0.25])
    cos, sin = rotary_tables(inv_freq, 5)
    angles = torch.arange(5.0)[:, None] * inv_freq
    assert cos.dtype == sin.dtype == torch.float32
    torch.testing.assert_close(cos, angles.cos())
    torch.testing.assert_close(sin, angles.sin())
