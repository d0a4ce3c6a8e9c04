"""FlashInfer's attention of a prefill, planned for a CUDA graph as an engine of requests would."""

from collections.abc import Callable

import torch
from torch import Tensor

from punica_serve.bench.kernels.operators import LayerCall

#: Partial results of contexts that are split over blocks.
_WORKSPACE_BYTES = 256 << 20


def flashinfer_prefill(
    q: Tensor, out: Tensor, layer: Callable[[int], tuple[Tensor, Tensor]], pages: Tensor, context: int
) -> LayerCall:
    """Attention of one request's newest rows into ``out``, by the kernels of the architectures from Ampere on (fa2).

    Args:
        q, out: [rows, heads, head_dim].
        layer: keys and values of a layer, [pages, page_size, kv_heads, head_dim].
        pages: int32, the request's.
        context: tokens in the cache.

    Raises ImportError where FlashInfer is not installed, RuntimeError where it can't make its kernels.
    """
    if not q.is_cuda:
        raise ImportError(f"it has nothing for a {q.device.type}")
    from flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper

    num_rows, heads, head_dim = q.shape
    _, page_size, kv_heads, _ = layer(0)[0].shape
    row_indptr, page_indptr = _int32(0, num_rows), _int32(0, len(pages))
    last_page_length = _int32(context - (len(pages) - 1) * page_size)
    wrapper = BatchPrefillWithPagedKVCacheWrapper(
        torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=q.device),
        use_cuda_graph=True,
        qo_indptr_buf=row_indptr.to(q.device),
        paged_kv_indptr_buf=page_indptr.to(q.device),
        paged_kv_indices_buf=torch.empty_like(pages),
        paged_kv_last_page_len_buf=last_page_length.to(q.device),
        backend="fa2",
    )
    wrapper.plan(
        row_indptr,
        page_indptr,
        pages,
        last_page_length,
        num_qo_heads=heads,
        num_kv_heads=kv_heads,
        head_dim_qk=head_dim,
        page_size=page_size,
        causal=True,
        q_data_type=q.dtype,
        kv_data_type=q.dtype,
    )
    return lambda number: wrapper.run(q, layer(number), out=out)


def _int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)
