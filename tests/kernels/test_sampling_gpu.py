"""Sampling in Triton: on a GPU, or in Triton's interpreter on small shapes where there is none."""

import math

import pytest
import torch
from torch import Tensor

from device_waits import waits_are_errors
from punica_kernels.gpu import sampling as gpu_sampling
from punica_kernels.sampling import filter_logits, philox_uniform
from punica_kernels.sampling import sample as reference_sample
from punica_kernels.sampling_rows import Filters, SamplingRows, scale_logits

INF = math.inf
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sampling, "_BLOCK", 64)


def sample(logits: Tensor, rows: SamplingRows, *, masked: bool = False) -> Tensor:
    tokens = torch.full((logits.shape[0],), -7, device=logits.device)
    gpu_sampling.sample(tokens, logits, rows, masked=masked)
    return tokens


def make_rows(
    temperatures: list[float],
    *,
    filters: dict[int, tuple[int, float, float]] | None = None,
    device: torch.device = DEVICE,
    seed: int = 0,
) -> SamplingRows:
    """Random seeds and positions; `filters`: top_k, top_p, min_p by row."""
    rng, num_rows = torch.Generator().manual_seed(seed), len(temperatures)
    chosen = None
    if filters:
        top_k, top_p, min_p = zip(*filters.values(), strict=True)
        chosen = Filters(
            torch.tensor(list(filters), device=device),
            torch.tensor(top_k, device=device),
            torch.tensor(top_p, dtype=torch.float32, device=device),
            torch.tensor(min_p, dtype=torch.float32, device=device),
        )
    return SamplingRows(
        torch.tensor(temperatures, dtype=torch.float32, device=device),
        torch.randint(-(2**63), 2**63 - 1, (num_rows,), generator=rng).to(device),
        torch.randint(0, 4096, (num_rows,), generator=rng).to(device),
        chosen,
    )


def check_best(tokens: Tensor, logits: Tensor, rows: SamplingRows, drawn: list[int]) -> None:
    """Each drawn row's token has the highest score, in float64, up to float32's last bits."""
    scores = scale_logits(logits[drawn], rows.temperatures[drawn]).cpu()
    if rows.filters:
        at = [drawn.index(row) for row in rows.filters.rows.tolist()]
        kept = scores[at]
        filter_logits(kept, rows.filters.top_k.cpu(), rows.filters.top_p.cpu(), rows.filters.min_p.cpu())
        scores[at] = kept
    uniform = philox_uniform(rows.seeds[drawn].cpu(), rows.positions[drawn].cpu(), logits.shape[1]).double()
    scores = scores.double() - (-uniform.log()).log()
    chosen = scores.gather(1, tokens[drawn].cpu()[:, None])[:, 0]
    assert (scores.amax(1) - chosen <= 1e-5).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.usefixtures("small_blocks")
def test_samples_equal_the_reference(dtype: torch.dtype) -> None:
    logits = (torch.randn(6, 210, device=DEVICE) * 3).to(dtype)
    rows = make_rows([0.0, 1.0, 0.7, 1e30, 1e-3, 1.3])
    tokens = sample(logits, rows)
    assert tokens[0] == logits[0].argmax()
    check_best(tokens, logits, rows, [1, 2, 3, 4, 5])
    assert torch.equal(tokens, sample(logits, rows))


@pytest.mark.usefixtures("small_blocks")
def test_filtered_rows_sample_beside_others() -> None:
    logits = torch.randn(5, 130, device=DEVICE) * 2
    rows = make_rows([1.0, 0.0, 0.9, 1.5, 1.0], filters={0: (4, 1.0, 0.0), 2: (0, 0.4, 0.0), 4: (3, 0.8, 0.3)})
    check_best(sample(logits, rows), logits, rows, [0, 2, 3, 4])


@pytest.mark.usefixtures("small_blocks")
def test_noise_is_the_references() -> None:
    # The noise alone decides between equal logits, so the token is that of the highest uniform number.
    rows = make_rows([1.0] * 24)
    tokens = sample(torch.zeros(24, 100, dtype=torch.float16, device=DEVICE), rows)
    assert torch.equal(tokens.cpu(), philox_uniform(rows.seeds.cpu(), rows.positions.cpu(), 100).argmax(1))


@pytest.mark.usefixtures("small_blocks")
def test_greedy_takes_the_lowest_of_equal_logits() -> None:
    logits = torch.zeros(3, 200, device=DEVICE)
    logits[1, [70, 71, 199]] = 2.0
    logits[2] = -5.0
    assert sample(logits, make_rows([0.0] * 3)).tolist() == [0, 70, 0]


@pytest.mark.filterwarnings("ignore:overflow encountered in divide:RuntimeWarning")
@pytest.mark.usefixtures("small_blocks")
def test_a_tiny_temperature_is_greedy() -> None:
    logits = torch.randn(3, 150, device=DEVICE)
    assert torch.equal(sample(logits, make_rows([1e-38] * 3)), logits.argmax(1))


@pytest.mark.usefixtures("small_blocks")
def test_a_row_that_is_not_finite_gives_no_token() -> None:
    logits = torch.randn(8, 70, device=DEVICE)
    logits[1, 69], logits[2, 3], logits[3, 0], logits[4, 68], logits[5, :] = torch.nan, INF, -INF, torch.nan, -INF
    logits[7] = torch.nan
    rows = make_rows([0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.9, 1.0], filters={4: (2, 0.5, 0.1), 6: (2, 1.0, 0.0)})
    assert (sample(logits, rows) >= 0).tolist() == [True, False, False, False, False, False, True, False]
    assert (sample(logits, rows, masked=True) >= 0).tolist() == [True, False, False, True, False, False, True, False]
    cpu = make_rows([0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.9, 1.0], device=torch.device("cpu"))
    for masked in (False, True):
        expected = reference_sample(logits.cpu(), cpu, masked=masked) >= 0
        assert torch.equal((sample(logits, rows, masked=masked) >= 0).cpu(), expected)


@pytest.mark.usefixtures("small_blocks")
def test_an_impossible_token_is_never_sampled() -> None:
    logits = torch.full((12, 140), -INF, device=DEVICE)
    logits[:, 100:103] = 0.0
    tokens = sample(logits, make_rows([1.0] * 12), masked=True).tolist()
    assert set(tokens) == {100, 101, 102}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("vocab_size", [32000, 128256, 50001])
def test_large_vocabularies(vocab_size: int, dtype: torch.dtype) -> None:
    logits = (torch.randn(40, vocab_size, device=DEVICE) * 3).to(dtype)
    temperatures = [0.0 if row % 4 == 0 else 0.3 + row / 20 for row in range(40)]
    rows = make_rows(temperatures, filters={3: (50, 1.0, 0.0), 6: (0, 0.9, 0.0), 7: (100, 0.8, 0.01)})
    tokens = sample(logits, rows)
    assert torch.equal(tokens[::4], logits[::4].argmax(1))
    drawn = [row for row in range(40) if row % 4]
    check_best(tokens, logits, rows, drawn)
    assert torch.equal(tokens, sample(logits, rows))


@pytest.mark.gpu
def test_noise_decides_among_equal_logits_of_a_large_vocabulary() -> None:
    rows = make_rows([0.8] * 256)
    tokens = sample(torch.ones(256, 32000, dtype=torch.bfloat16, device=DEVICE), rows)
    assert torch.equal(tokens.cpu(), philox_uniform(rows.seeds.cpu(), rows.positions.cpu(), 32000).argmax(1))


@pytest.mark.gpu
def test_nothing_waits_for_the_device() -> None:
    logits = torch.randn(4, 32000, device=DEVICE)
    plain, filtered = make_rows([0.0, 1.0, 1.0, 0.7]), make_rows([1.0] * 4, filters={2: (5, 0.9, 0.1)})
    sample(logits, filtered)
    with waits_are_errors():
        reference_sample(logits, plain)
        reference_sample(logits, filtered, masked=True)


@pytest.mark.gpu
def test_a_cuda_graph_samples_for_other_rows_than_it_was_captured_with() -> None:
    logits, rows = torch.randn(32, 32000, device=DEVICE), make_rows([0.0] * 16 + [1.0] * 16)
    sample(logits, rows)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = sample(logits, rows)
    for seed in range(3):
        other = make_rows([1.0] * 8 + [0.0] * 24, seed=seed)
        logits.normal_()
        rows.temperatures.copy_(other.temperatures)
        rows.seeds.copy_(other.seeds)
        rows.positions.copy_(other.positions)
        graph.replay()
        assert torch.equal(tokens, sample(logits, rows))
