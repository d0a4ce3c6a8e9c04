"""Sampling in parts of the vocabulary, as ranks of a group have them: each draws its best, and the best of these wins.

The noise of a token depends on (seed, position, token id), so it does not matter who draws it: see `sampling`.
"""

import torch
from torch import Tensor

from punica_kernels.checks import require_shape
from punica_kernels.sampling import gumbel_noise
from punica_kernels.sampling_rows import SamplingRows, scale_logits


def draw(logits: Tensor, rows: SamplingRows, first_token: int, *, masked: bool = False) -> Tensor:
    """The best token of each row in a part of the vocabulary, float32 [R, 4], for `pick_drawn`; filters don't count.

    The four are the part's highest logit, the best token's logit, its noise and its id (below 2^24), which is -1 where
    the logits are not all finite. `masked` allows -inf, even if nothing else is there.

    logits: float32, bfloat16 or float16 [R, tokens of the part]; first_token: the id of its first one, a multiple of 4.
    """
    if logits.is_cuda:
        from punica_kernels.gpu import sampling

        return sampling.draw(logits, rows.temperatures, rows.seeds, rows.positions, first_token, masked=masked)
    lowest, highest = logits.float().aminmax(dim=-1)
    is_valid = ~(highest.isnan() | highest.isposinf()) & (lowest.isfinite() | masked)
    tokens, noise = logits.argmax(-1), torch.zeros_like(highest)
    sampled = (rows.temperatures > 0).nonzero().squeeze(1)
    if sampled.numel():
        own = gumbel_noise(rows.seeds[sampled], rows.positions[sampled], logits.shape[1], first_token)
        scores = scale_logits(logits[sampled], rows.temperatures[sampled]).add_(own)
        tokens[sampled] = scores.argmax(-1)
        noise[sampled] = own.gather(1, tokens[sampled, None]).squeeze(1)
    values = logits.gather(1, tokens[:, None]).squeeze(1).float()
    return torch.stack([highest, values, noise, (tokens + first_token).where(is_valid, -1).float()], dim=1)


def pick_drawn(drawn: Tensor, temperatures: Tensor, out: Tensor) -> None:
    """out = the next token of each row, int64 [R], of those that `draw` found in all parts of the vocabulary.

    It is that of `sample`, except for scores that agree but for their last bits. drawn: float32 [parts, R, 4], by first
    token; temperatures: float32 [R].
    """
    require_shape("out", out, drawn.shape[1])
    require_shape("temperatures", temperatures, drawn.shape[1])
    if drawn.is_cuda:
        from punica_kernels.gpu import sampling

        sampling.pick_drawn(out, drawn, temperatures)
        return
    highest, values, noise, tokens = drawn.unbind(-1)
    row_highest = highest.amax(0)
    scores = (values - row_highest).div_(temperatures.where(temperatures > 0, 1.0)).add_(noise)
    best = tokens.gather(0, scores.argmax(0, keepdim=True)).squeeze(0)
    is_valid = row_highest.isfinite() & (tokens >= 0).all(0)
    out.copy_(best.where(is_valid, -1.0))
