"""Input tokens that the host does not know yet: the step before has sampled them, and they are still on the device."""

from torch import Tensor

from punica_kernels.checks import require_dense_rows, require_shape


def fill_sampled(token_ids: Tensor, sources: Tensor, sampled_ids: Tensor) -> None:
    """token_ids[i] = sampled_ids[sources[i]] wherever sources[i] is not negative; the others are left as they are.

    A sampled id of -1 (logits that were not finite) becomes token 0; its results are thrown away.

    Args:
        token_ids: int32 [num_rows], written in place.
        sources: int32 [num_rows], each below the number of sampled ids.
        sampled_ids: int64 [any number].

    Raises ValueError, naming the argument, when the shapes do not fit.
    """
    require_shape("token_ids", token_ids, len(token_ids))
    require_shape("sources", sources, len(token_ids))
    require_shape("sampled_ids", sampled_ids, len(sampled_ids))
    if token_ids.is_cuda:
        from punica_kernels.gpu import sampled_tokens

        require_dense_rows(token_ids=token_ids, sources=sources, sampled_ids=sampled_ids)
        sampled_tokens.fill_sampled(token_ids, sources, sampled_ids)
    else:
        rows = sources >= 0
        token_ids[rows] = sampled_ids[sources[rows]].clamp_min(0).to(token_ids.dtype)
