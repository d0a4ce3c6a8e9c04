"""FlashInfer's attention, planned for a CUDA graph as a serving engine would."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

from punica_serve.bench.kernels.operators import LayerCall

#: Partial results of contexts that are split over blocks.
_WORKSPACE_BYTES = 256 << 20
#: From this many query heads per kv head, tensor cores decode faster; of the smaller numbers, the other kernels support
#: 1, 2 and 3.
_TENSOR_CORE_GROUP = 4


def flashinfer_attention(
    q: Tensor,
    out: Tensor,
    layer: Callable[[int], tuple[Tensor, Tensor]],
    pages: Tensor,
    contexts: Sequence[int],
    num_new: int,
    backend: Literal["fa2", "fa3"] = "fa2",
    *,
    window: int | None = None,
    soft_cap: float | None = None,
) -> LayerCall:
    """Writes the attention of each request's newest rows to ``out``: decodes with fa2, the others with ``backend``.

    Args:
        q, out: [requests * num_new, heads, head_dim].
        layer: keys and values of a layer, [pages, page_size, kv_heads, head_dim].
        pages: int32, one request's after the other's.
        contexts: tokens in the cache, of each request.
        num_new: rows of each request; with one, they are decodes.
        backend: kernels for Ampere and later, or for Hopper.
        window: tokens that a row sees, itself the last of them; None: its whole context.
        soft_cap: of the scores; None leaves them.

    Raises ImportError if FlashInfer is not installed, RuntimeError if it can't build its kernels.
    """
    if not q.is_cuda:
        raise ImportError(f"FlashInfer does not support {q.device.type}")
    import flashinfer

    page_size = layer(0)[0].shape[1]
    counts = [-(-context // page_size) for context in contexts]
    last = _int32(context - (count - 1) * page_size for context, count in zip(contexts, counts, strict=True))
    tables = (_int32([0, *accumulate(counts)]), pages, last)
    on_device = [table.to(q.device) for table in tables]
    workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
    heads = {"num_qo_heads": q.shape[1], "num_kv_heads": layer(0)[0].shape[2], "page_size": page_size}
    # `window_left` does not count the row itself.
    scores = {"window_left": -1 if window is None else window - 1, "logits_soft_cap": soft_cap}
    dtypes = {"q_data_type": q.dtype, "kv_data_type": q.dtype}
    names = ("paged_kv_indptr_buf", "paged_kv_indices_buf", "paged_kv_last_page_len_buf")
    if num_new == 1:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace,
            use_cuda_graph=True,
            # The other kernel reads pages behind the window, too.
            use_tensor_cores=window is not None or heads["num_qo_heads"] // heads["num_kv_heads"] >= _TENSOR_CORE_GROUP,
            **dict(zip((f"{name}fer" for name in names), on_device, strict=True)),
            backend="fa2",
        )
        wrapper.plan(*tables, **heads, head_dim=q.shape[2], **scores, **dtypes)
    else:
        rows = _int32(range(0, len(q) + 1, num_new))
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            workspace,
            use_cuda_graph=True,
            qo_indptr_buf=rows.to(q.device),
            **dict(zip(names, on_device, strict=True)),
            backend=backend,
        )
        wrapper.plan(rows, *tables, **heads, head_dim_qk=q.shape[2], causal=True, **scores, **dtypes)
    return lambda number: wrapper.run(q, layer(number), out=out)


def _int32(numbers: Iterable[int]) -> Tensor:
    return torch.tensor([*numbers], dtype=torch.int32)
