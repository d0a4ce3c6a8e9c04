"""Where a step takes its tokens from when the host does not know them yet: what the step before has drawn."""

from torch import Tensor

from punica_kernels.checks import require_dense_rows, require_shape


def place_drawn(token_ids: Tensor, sources: Tensor, draws: Tensor) -> None:
    """token_ids[i] = draws[sources[i]] wherever sources[i] is not negative; all others stay.

    A draw of -1, of logits that were not finite, becomes token 0: what follows it is thrown away.

    Args:
        token_ids: int32 [num_rows], written in place.
        sources: int32 [num_rows], each below the number of draws.
        draws: int64 [any number].

    Raises ValueError, naming the argument, when the shapes do not fit.
    """
    require_shape("token_ids", token_ids, len(token_ids))
    require_shape("sources", sources, len(token_ids))
    require_shape("draws", draws, len(draws))
    if token_ids.is_cuda:
        from punica_kernels.gpu import drawn_tokens

        require_dense_rows(token_ids=token_ids, sources=sources, draws=draws)
        drawn_tokens.place_drawn(token_ids, sources, draws)
    else:
        rows = sources >= 0
        token_ids[rows] = draws[sources[rows]].clamp_min(0).to(token_ids.dtype)
