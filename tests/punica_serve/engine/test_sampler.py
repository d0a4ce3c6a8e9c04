from typing import Any

import pytest
import torch

from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.sampler import SampledToken, Sampler
from punica_serve.protocol import Request, SamplingParams

VOCAB, EOS = 16, 0


def _row(prompt: tuple[int, ...] = (1,), generated: tuple[int, ...] = (), **params: Any) -> Sequence:
    return Sequence.of(Request("r", 0, prompt, SamplingParams(**params), generated_ids=generated), 256)


def _sampler(*eos_token_ids: int) -> Sampler:
    return Sampler(VOCAB, eos_token_ids or (EOS,), max_rows=64, device=torch.device("cpu"))


def _sampled_tokens(logits: torch.Tensor, *rows: Sequence) -> list[SampledToken | None]:
    return _sampler().launch(logits, rows, range(len(rows))).read()


def _draw(logits: torch.Tensor, *rows: Sequence) -> list[int]:
    return [sampled.token_id for sampled in _sampled_tokens(logits, *rows) if sampled is not None]


def _logits(**values: float) -> torch.Tensor:
    logits = torch.zeros(1, VOCAB)
    for token, value in values.items():
        logits[0, int(token[1:])] = value
    return logits


def test_greedy_takes_the_highest() -> None:
    assert _draw(_logits(t3=1.0, t5=2.0), _row()) == [5]


@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"top_p": 1e-46}, {"min_p": 1e-46}], ids=str)
def test_a_temperature_that_is_nearly_zero_takes_the_highest(filters: dict[str, Any]) -> None:
    """It is 0 in float32."""
    logits = _logits(t3=1.0, t5=2.0).repeat(2, 1)
    assert _draw(logits, _row(temperature=1.0, top_k=1), _row(temperature=1e-46, **filters)) == [5, 5]


def test_an_infinite_temperature_samples_from_all_allowed_tokens() -> None:
    """It is infinite in float32."""
    rows = [_row(temperature=1e39, seed=seed, min_tokens=1, stop_token_ids=tuple(range(1, 14))) for seed in range(50)]
    assert set(_draw(_logits(t5=2.0).repeat(len(rows), 1), *rows)) == {14, 15}


def test_repetition_penalty_counts_prompt_and_output() -> None:
    logits = _logits(t3=2.0, t5=1.5, t6=1.2)
    assert _draw(logits, _row((3,), (5,), repetition_penalty=2.0)) == [6]


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_presence_and_frequency_count_the_output_only(penalty: str) -> None:
    logits = _logits(t3=2.0, t5=1.5)
    assert _draw(logits, _row((3,), (), **{penalty: 1.0})) == [3]
    assert _draw(logits, _row((1,), (3,), **{penalty: 1.0})) == [5]


def test_a_penalty_of_one_row_leaves_the_others_alone() -> None:
    logits = _logits(t3=2.0, t5=1.9).repeat(3, 1)
    rows = [_row((3,)), _row((3,), repetition_penalty=2.0), _row((3,))]
    assert _draw(logits, *rows) == [3, 5, 3]


def test_penalties_know_a_token_in_flight() -> None:
    sampler, sequence = _sampler(), _row(presence_penalty=1.0)
    logits = _logits(t3=2.0, t5=1.5)
    (first,) = sampler.launch(logits, [sequence], [0]).read()
    sequence.num_in_flight = 1  # not in token_ids yet
    (second,) = sampler.launch(logits, [sequence], [0]).read()
    assert first is not None and second is not None
    assert (first.token_id, second.token_id) == (3, 5)


def test_a_request_that_paused_is_read_from_its_tokens_again() -> None:
    sampler, sequence = _sampler(), _row(presence_penalty=1.0)
    logits = _logits(t3=2.0, t5=1.5)
    sampler.launch(logits, [sequence], [0]).read()
    sampler.launch(logits, [_row()], [0]).read()  # a step without it: its draw was lost
    (sampled,) = sampler.launch(logits, [sequence], [0]).read()
    assert sampled is not None and sampled.token_id == 3


def test_warming_up_samples_for_no_request() -> None:
    sampler = _sampler()
    sampler.warm_up(torch.full((3, VOCAB), torch.nan))
    sampler.warm_up(torch.zeros(2, VOCAB, dtype=torch.bfloat16))
    assert not sampler.sampled_ids.any()


def test_rows_of_the_logits_need_not_be_those_of_the_sequences() -> None:
    logits = torch.cat([_logits(t3=1.0), _logits(t4=1.0), _logits(t5=1.0)])
    sampler = _sampler()
    sequences = [_row(), _row(min_tokens=1), _row(presence_penalty=2.0, generated=(3,), logprobs=1)]
    sampled_tokens = sampler.launch(logits, sequences, [2, 1, 0]).read()
    assert [sampled.token_id for sampled in sampled_tokens if sampled] == [5, 4, 0]
    assert sampler.sampled_ids[:3].tolist() == [0, 4, 5]


def test_min_tokens_forbids_end_of_sequence_and_stop_tokens() -> None:
    logits = _logits(t0=3.0, t7=2.0, t4=1.0)
    assert _draw(logits, _row(min_tokens=1, stop_token_ids=(7,))) == [4]
    assert _draw(logits, _row(generated=(9,), min_tokens=1, stop_token_ids=(7,))) == [0]
    assert _draw(logits, _row(min_tokens=1, stop_token_ids=(7,), ignore_eos=True)) == [0]


def test_ends() -> None:
    sampler = _sampler(EOS, 9)
    assert sampler.is_end(_row(), EOS) and sampler.is_end(_row(), 9)
    assert not sampler.is_end(_row(ignore_eos=True), EOS)
    assert sampler.is_end(_row(ignore_eos=True, stop_token_ids=(4,)), 4)
    assert not sampler.is_end(_row(), 4)


def test_samples_depend_on_seed_and_position_alone() -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(0))
    rows = [_row(generated=(2,) * position, temperature=1.0, seed=seed) for seed in range(8) for position in range(8)]
    together = _draw(logits.repeat(len(rows), 1), *rows)
    assert together == [_draw(logits, row)[0] for row in rows]
    assert len(set(together)) > 4


def test_the_highest_seed_is_as_good_as_any() -> None:
    assert 0 <= _draw(torch.zeros(1, VOCAB), _row(temperature=1.0, seed=(1 << 64) - 1))[0] < VOCAB


def test_logprobs_are_before_penalties_and_only_for_those_who_ask() -> None:
    logits = _logits(t3=2.0, t5=1.9).repeat(3, 1)
    rows = (_row((3,), logprobs=2, repetition_penalty=9.0), _row(), _row(logprobs=0))
    sampled_tokens = [sampled for sampled in _sampled_tokens(logits, *rows) if sampled is not None]
    first, none, last = (sampled.logprobs for sampled in sampled_tokens)
    expected = logits[0].log_softmax(-1)
    assert first is not None and none is None and last is not None
    assert first.logprob == pytest.approx(float(expected[sampled_tokens[0].token_id]))
    assert first.top_ids == (3, 5)
    assert last.top_ids == () and last.logprob == pytest.approx(float(expected[3]))


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_gets_no_token_and_the_others_do(poison: float) -> None:
    logits = _logits(t3=2.0).repeat(3, 1)
    logits[1, 5] = poison
    sampled_tokens = _sampled_tokens(logits, _row(), _row(temperature=1.0, logprobs=1), _row())
    assert [sampled.token_id if sampled else None for sampled in sampled_tokens] == [3, None, 3]


@pytest.mark.parametrize(
    "extreme",
    [
        {"top_k": (1 << 31) - 1},
        {"temperature": 1e-38},
        {"temperature": 1e30},
        {"temperature": 1.0, "top_p": 1e-30},
        {"temperature": 1.0, "min_p": 1.0},
        {"repetition_penalty": 1e-30},
        {"repetition_penalty": 10.0, "presence_penalty": 2.0, "frequency_penalty": 2.0},
        {"temperature": 1.0, "seed": (1 << 64) - 1},
        {"logprobs": VOCAB},
        {"min_tokens": 3, "stop_token_ids": tuple(range(1, 15))},
    ],
)
def test_any_value_in_range_gives_a_token(extreme: dict[str, Any]) -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1))
    (token_id,) = _draw(logits, _row((3,), (4, 4, 5), **{"max_tokens": 9, **extreme}))
    assert 0 <= token_id < VOCAB


def test_a_tiny_temperature_is_greedy() -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(2))
    assert _draw(logits, _row(temperature=1e-38, seed=5)) == [int(logits.argmax())]


def test_a_seed_of_64_bits_samples_alike_in_any_batch() -> None:
    row = _row(temperature=1.0, seed=2**64 - 3)
    logits = torch.randn(1, VOCAB)
    alone = _draw(logits, row)
    others = [_row(temperature=0.5 + number, seed=number) for number in range(2)]
    assert _draw(logits.repeat(3, 1), others[0], row, others[1])[1:2] == alone
