"""Sampling of the next token, reproducible from (seed, position, token id) alone.

A token is sampled by the Gumbel-max trick: argmax of logits / temperature + g, where g is Gumbel noise from the
counter-based generator Philox4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011). The
generator has no state, so a request that moves to another device goes on as if it had stayed, and a row never depends
on the other rows of its batch.
"""

import math

import torch
from torch import Tensor

from punica_kernels.checks import require_dense_rows, require_shape
from punica_kernels.sampling_rows import SamplingRows, scale_logits

_MASK_32 = 0xFFFFFFFF
_ROUNDS = 10
# The constants of Philox4x32: multipliers of words 0 and 2, and what is added to the key's words after each round.
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def philox_4x32(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Philox4x32-10: four random 32-bit words for each 128-bit counter under a 64-bit key.

    All words are int64 tensors that hold 32-bit values, of shapes that broadcast together; low word first.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # An int64 product wraps, but its bits are those of the unsigned one; masks drop the sign that >> brings in.
        product_0, product_1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = (product_1 >> 32 & _MASK_32) ^ c1 ^ k0
        c2 = (product_0 >> 32 & _MASK_32) ^ c3 ^ k1
        c1, c3 = product_1 & _MASK_32, product_0 & _MASK_32
        k0, k1 = k0 + _KEY_STEPS[0] & _MASK_32, k1 + _KEY_STEPS[1] & _MASK_32
    return c0, c1, c2, c3


def philox_uniform(seeds: Tensor, positions: Tensor, vocab_size: int, first_token: int = 0) -> Tensor:
    """Uniform noise in the open interval (0, 1), float32 [R, vocab_size], of the tokens from `first_token` on.

    seeds: int64 [R], the bit pattern of an unsigned 64-bit seed, whose halves are the key. positions: int64 [R].
    first_token: a multiple of 4. Token t takes word t % 4 of counter (t // 4, position, 0, 0); its upper 23 bits n give
    (n + 1/2) / 2^23, which float32 holds exactly and which is never 0 or 1.
    """
    blocks = torch.arange(first_token // 4, -(-(first_token + vocab_size) // 4), device=seeds.device)[None]
    zero = torch.zeros_like(blocks)
    key = (seeds[:, None] & _MASK_32, seeds[:, None] >> 32 & _MASK_32)
    words = torch.stack(philox_4x32((blocks, positions[:, None] & _MASK_32, zero, zero), key), dim=-1)
    return (words.flatten(1)[:, :vocab_size] >> 9).float().add_(0.5).mul_(2.0**-23)


def gumbel_noise(seeds: Tensor, positions: Tensor, vocab_size: int, first_token: int = 0) -> Tensor:
    """Standard Gumbel noise -log(-log(u)) of `philox_uniform`, float32 [R, vocab_size]."""
    return philox_uniform(seeds, positions, vocab_size, first_token).log_().neg_().log_().neg_()


def apply_penalties(
    logits: Tensor,
    prompt_mask: Tensor,
    output_counts: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """Penalise, in place, tokens that were already seen, as Hugging Face and vLLM do.

    Tokens of the prompt or the output have positive logits divided, others multiplied, by `repetition` (1 = off).
    Tokens of the output alone then lose `presence` once and `frequency` per occurrence (0 = off).

    logits: float32 [R, V]; prompt_mask: bool [R, V]; output_counts: integers [R, V]; the penalties: float32 [R].
    """
    seen = prompt_mask | (output_counts > 0)
    factor = torch.where(seen, repetition[:, None], 1.0)
    logits.copy_(torch.where(logits > 0, logits / factor, logits * factor))
    logits.sub_(output_counts * frequency[:, None])
    logits.sub_((output_counts > 0) * presence[:, None])


def filter_logits(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> None:
    """Set to -inf, in place, the logits that each row's filters remove; the most probable token always stays.

    In vLLM's order: min_p removes tokens below min_p times the highest probability (0 = off); top_k keeps the k most
    probable of the others (0 = off); top_p keeps, of those, the fewest whose renormalised probability reaches top_p
    (1 = off). Among equal logits the lower token id counts as more probable.

    logits: float32 [R, V]; top_k: int64 [R]; top_p, min_p: float32 [R].
    """
    threshold = logits.amax(-1) + min_p.log()
    logits.masked_fill_(logits < threshold[:, None], -math.inf)
    logits.copy_(_apply_top_k_top_p(logits, top_k, top_p))


def _apply_top_k_top_p(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    values, token_ids = logits.sort(dim=-1, descending=True, stable=True)
    ordinals = torch.arange(logits.shape[1], device=logits.device)
    values.masked_fill_((top_k[:, None] > 0) & (ordinals >= top_k[:, None]), -math.inf)
    probs = values.softmax(-1)
    # Two rows at least: CUDA adds up a single one in an order that differs from run to run.
    probs_before = probs.expand(max(2, len(probs)), -1).cumsum(-1)[: len(probs)].sub_(probs)
    # top_p = 1 must keep everything, although a sum of probabilities may reach 1 before the last token.
    dropped = (probs_before >= top_p[:, None]) & (top_p[:, None] < 1) & (ordinals > 0)
    values.masked_fill_(dropped, -math.inf)
    return torch.empty_like(values).scatter_(1, token_ids, values)


def sample(logits: Tensor, rows: SamplingRows, *, masked: bool = False, out: Tensor | None = None) -> Tensor:
    """The next token of each row, int64 [R]; -1 where the logits are not all finite. `logits` is left as it is.

    Temperature 0 takes the highest logit, the lowest token id on ties. Other rows are sampled
    from softmax(logits / temperature) after `filter_logits`, with noise from the row's seed and position (see
    `philox_uniform`), independently of the other rows. Nothing here waits for a CUDA device. Its uniform noise equals
    the CPU's bit by bit; a sample can differ from the CPU's only if two scores agree but for their last bits.

    logits: float32, bfloat16 or float16 [R, V]. `masked` allows -inf, for tokens that must not be sampled; a row of
    nothing else gives -1. `out`: int64 [R], receives the tokens. Raises ValueError when the shapes do not fit.
    """
    if out is None:
        out = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    require_shape("out", out, logits.shape[0])
    for name in ("temperatures", "seeds", "positions"):
        require_shape(name, getattr(rows, name), logits.shape[0])
    if logits.is_cuda:
        from punica_kernels.gpu import sampling

        in_rows = {"temperatures": rows.temperatures, "seeds": rows.seeds, "positions": rows.positions}
        require_dense_rows(out=out, logits=logits, **in_rows)
        sampling.sample(out, logits, rows, masked=masked)
        return out
    return out.copy_(_sample(logits, rows, masked))


def _sample(logits: Tensor, rows: SamplingRows, masked: bool) -> Tensor:
    lowest, highest = logits.aminmax(dim=-1)
    # NaN passes through aminmax.
    is_valid = highest.isfinite() if masked else highest.isfinite() & lowest.isfinite()
    tokens = logits.argmax(-1)
    sampled = (rows.temperatures > 0).nonzero().squeeze(1)
    if sampled.numel():
        scores = scale_logits(logits[sampled], rows.temperatures[sampled])
        if rows.filters:
            filtered = torch.searchsorted(sampled, rows.filters.rows)
            kept = scores[filtered]
            filter_logits(kept, rows.filters.top_k, rows.filters.top_p, rows.filters.min_p)
            scores[filtered] = kept
        scores += gumbel_noise(rows.seeds[sampled], rows.positions[sampled], logits.shape[1])
        tokens[sampled] = scores.argmax(-1)
    return tokens.where(is_valid, -1)


def token_logprobs(logits: Tensor, token_ids: Tensor, top_n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of the chosen and of the `top_n` most probable tokens under softmax(logits).

    logits: float32 [R, V]; token_ids: int64 [R]. Returns (float32 [R], int64 [R, top_n], float32 [R, top_n]), the most
    probable first.
    """
    logprobs = logits.log_softmax(-1)
    top_logprobs, top_ids = logprobs.topk(min(top_n, logits.shape[1]), dim=-1)
    return logprobs.gather(1, token_ids[:, None]).squeeze(1), top_ids, top_logprobs
