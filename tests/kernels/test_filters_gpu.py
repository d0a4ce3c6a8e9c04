"""Top-k, top-p and min-p without sorting: in Triton, on a GPU or in its interpreter, against the sorted reference."""

import math

import pytest
import torch
from torch import Tensor

from punica_kernels.gpu import filters as gpu_filters
from punica_kernels.gpu.filters import apply_top_k_top_p_min_p
from punica_kernels.sampling import filter_logits

INF = math.inf
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("_BLOCK", 64), ("_WIDE_BLOCK", 64), ("_NUM_WARPS", 2)):
        monkeypatch.setattr(gpu_filters, name, size)


def kept(scores: Tensor, *rows: tuple[int, float, float]) -> Tensor:
    """Filters a copy by (top_k, top_p, min_p) of each row: bool [rows, tokens]."""
    top_k, top_p, min_p = zip(*rows, strict=True)
    left = scores.clone()
    apply_top_k_top_p_min_p(
        left,
        torch.tensor(top_k, device=scores.device),
        torch.tensor(top_p, dtype=torch.float32, device=scores.device),
        torch.tensor(min_p, dtype=torch.float32, device=scores.device),
    )
    stays = left > -INF
    assert torch.equal(left[stays], scores[stays])
    return stays


def reference(scores: Tensor, *rows: tuple[int, float, float]) -> Tensor:
    top_k, top_p, min_p = zip(*rows, strict=True)
    left = scores.cpu().clone()
    filter_logits(left, torch.tensor(top_k), torch.tensor(top_p), torch.tensor(min_p))
    return left > -INF


def random_scores(num_rows: int, vocab_size: int, *, step: float = 0.0) -> Tensor:
    """The highest of each row is 0; with a step, many are equal."""
    logits = torch.randn(num_rows, vocab_size, device=DEVICE) * 3
    if step:
        logits = (logits / step).round() * step
    return logits - logits.amax(-1, keepdim=True)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("vocab_size", [1, 64, 150])
@pytest.mark.parametrize("step", [0.0, 0.5])
def test_what_stays_is_the_references(vocab_size: int, step: float) -> None:
    scores = random_scores(6, vocab_size, step=step)
    scores[4:, 1::3] = -INF
    rows = [(0, 1.0, 0.0), (5, 1.0, 0.0), (0, 0.6, 0.0), (0, 1.0, 0.05), (7, 0.8, 0.01), (400, 0.95, 0.001)]
    assert torch.equal(kept(scores, *rows).cpu(), reference(scores, *rows))


@pytest.mark.usefixtures("small_blocks")
def test_of_equal_scores_the_first_tokens_stay_across_blocks() -> None:
    scores = torch.full((3, 130), -1.0, device=DEVICE)
    scores[:, 100] = 0.0
    # The highest has e times the mass of each other: 0.5 of all is it and 64 of them, 129 / 2 - e / 2 rounded up.
    stays = kept(scores, (70, 1.0, 0.0), (0, 0.5, 0.0), (70, 0.5, 0.0))
    others = [*range(100), *range(101, 130)]
    for row, num_others in enumerate((69, 64, 34)):
        assert stays[row].nonzero().squeeze(1).tolist() == sorted([100, *others[:num_others]])


@pytest.mark.usefixtures("small_blocks")
def test_all_equal() -> None:
    stays = kept(torch.zeros(3, 70, device=DEVICE), (66, 1.0, 0.0), (0, 0.5, 0.0), (0, 1.0, 1.0))
    assert stays.sum(1).tolist() == [66, 35, 70]
    assert stays[0, :66].all()
    assert stays[1, :35].all()


@pytest.mark.usefixtures("small_blocks")
def test_top_p_is_of_what_the_other_filters_leave() -> None:
    scores = torch.full((3, 100), -3.0, device=DEVICE)
    scores[:, [90, 7, 30]] = torch.tensor([0.0, -0.1, -0.2], device=DEVICE)
    # Masses: 1, 0.90, 0.82 and 97 of 0.05; half of it takes one token of two, two of three, or all three and more.
    stays = kept(scores, (2, 0.5, 0.0), (0, 0.5, 0.5), (0, 0.5, 0.0))
    assert stays[0].nonzero().squeeze(1).tolist() == [90]
    assert stays[1].nonzero().squeeze(1).tolist() == [7, 90]
    assert stays[2].sum() > 3


@pytest.mark.usefixtures("small_blocks")
def test_neighbouring_floats_are_told_apart() -> None:
    below = torch.tensor(-1.0).view(torch.int32) + torch.arange(40, dtype=torch.int32)
    scores = torch.cat([torch.zeros(1), below.view(torch.float32)]).flip(0).repeat(4, 1).to(DEVICE)
    # The highest has e times the mass of each other, of which 0.5 of all takes 19 and 0.52 takes 20.
    stays = kept(scores, (8, 1.0, 0.0), (9, 1.0, 0.0), (0, 0.5, 0.0), (0, 0.52, 0.0))
    for row, num_kept in enumerate((8, 9, 20, 21)):
        assert stays[row].tolist() == [False] * (41 - num_kept) + [True] * num_kept


@pytest.mark.usefixtures("small_blocks")
def test_the_most_probable_token_always_stays() -> None:
    scores = random_scores(6, 100)
    rows = [(1, 1.0, 0.0), (0, 1e-9, 0.0), (1, 1e-9, 1.0), (0, 0.0, 0.0), (1, 0.0, 0.0), (1, 1e-50, 1.0)]
    assert torch.equal(kept(scores, *rows), scores == 0)
    tied = torch.zeros(2, 100, device=DEVICE)
    assert kept(tied, (5, 0.0, 0.0), (5, 1e-45, 0.0)).sum(1).tolist() == [1, 1]


@pytest.mark.usefixtures("small_blocks")
def test_a_row_is_filtered_alike_beside_any_other() -> None:
    scores = random_scores(3, 100)
    rows = [(9, 0.9, 0.0), (0, 0.3, 0.02), (20, 0.7, 0.0)]
    together = kept(scores, *rows)
    scores[[0, 2]] = math.nan  # of logits that were not finite
    left = scores.clone()
    columns = [torch.tensor(column, device=DEVICE) for column in zip(*rows, strict=True)]
    apply_top_k_top_p_min_p(left, *columns)
    assert torch.equal(left[1] > -INF, together[1])


def test_no_rows() -> None:
    empty = torch.empty(0, device=DEVICE)
    apply_top_k_top_p_min_p(torch.empty(0, 10, device=DEVICE), empty.long(), empty, empty)


@pytest.mark.gpu
@pytest.mark.parametrize("vocab_size", [32000, 50001, 128256])
def test_large_vocabularies(vocab_size: int) -> None:
    scores = random_scores(40, vocab_size) / torch.linspace(0.3, 3, 40, device=DEVICE)[:, None]
    rows = [(50 * (row % 4), 1.0 - 0.02 * (row % 5), 0.001 * (row % 3)) for row in range(40)]
    stays, expected = kept(scores, *rows).cpu(), reference(scores, *rows)
    # Sums of so many probabilities agree but for their last bits: the last token or a few of nearly its score.
    assert ((stays != expected).sum(1) <= 1 + expected.sum(1) // 1000).all()
    assert torch.equal(stays, kept(scores, *rows).cpu())
