"""The exchange of each size, from measured times."""

from dataclasses import replace
from pathlib import Path

import pytest

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.ranks.exchange_choice import (
    FUSED_BYTES,
    ExchangeChoice,
    ExchangeTime,
    Way,
    choice_of,
    choose,
    read_times,
)
from punica_serve.errors import ConfigError

_H100 = "NVIDIA H100 80GB HBM3"
_H200 = "NVIDIA H200"


def _time(size: int, nccl: float, one_shot: float | None = None, two_shot: float | None = None) -> ExchangeTime:
    return ExchangeTime(bytes=size, nccl=nccl, one_shot=one_shot, two_shot=two_shot)


@pytest.mark.parametrize(
    ("times", "borders"),
    [
        ([_time(8, 9.0, 5.0, 6.0), _time(16, 9.0, 5.0, 6.0)], ((16, "one_shot"),)),
        ([_time(16, 9.0, 8.0, 6.0), _time(8, 9.0, 5.0, 6.0)], ((8, "one_shot"), (16, "two_shot"))),
        ([_time(8, 9.0, None, 6.0), _time(16, 5.0, 8.0)], ((8, "two_shot"),)),
        ([_time(8, 5.0, 6.0), _time(16, 9.0, 6.0), _time(32, 5.0, 6.0)], ((8, "nccl"), (16, "one_shot"))),
        ([_time(8, 5.0, 5.0)], ()),
    ],
)
def test_the_fastest_way_takes_each_size(times: list[ExchangeTime], borders: tuple[tuple[int, Way], ...]) -> None:
    assert choose(times) == ExchangeChoice(borders)


def test_sizes_between_take_the_larger_ones_way_and_nccl_those_beyond() -> None:
    choice = ExchangeChoice(((8, "one_shot"), (16, "two_shot")))
    assert [choice.way(size) for size in (1, 8, 9, 16, 17)] == ["one_shot", "one_shot", "two_shot", "two_shot", "nccl"]
    assert choice.max_bytes == 16
    assert str(choice) == "one_shot up to 8 bytes, two_shot up to 16 bytes, nccl beyond"


@pytest.mark.parametrize(
    ("fused", "max_bytes"),
    [
        ([(5.0, 9.0), (6.0, 9.0), (9.0, 9.0)], 16),
        ([(5.0, 9.0), (None, None), (6.0, 9.0)], 8),
        ([(9.0, 5.0), (6.0, 9.0), (6.0, 9.0)], 0),
        ([(5.0, None), (6.0, None), (6.0, None)], 0),
    ],
)
def test_layers_are_fused_up_to_where_three_kernels_are_as_fast(
    fused: list[tuple[float | None, float | None]], max_bytes: int
) -> None:
    times = [
        ExchangeTime(bytes=8 << place, nccl=9.0, one_shot=8.0, fused=own, unfused=others)
        for place, (own, others) in enumerate(fused)
    ]
    choice = choose(times[::-1])
    assert choice == ExchangeChoice(((32, "one_shot"),), max_bytes)
    assert ("fused with the norm up to" in str(choice)) == bool(max_bytes)


def test_fused_can_be_set_for_groups_of_any_size(tiny_llama: Path) -> None:
    config = EngineConfig(model=tiny_llama, exchange="fused")
    for device, num_ranks, max_fused_bytes in ((_H100, 2, 16 << 20), (_H100, 4, FUSED_BYTES), (_H200, 2, FUSED_BYTES)):
        auto = choice_of(EngineConfig(model=tiny_llama), device, num_ranks)
        assert choice_of(config, device, num_ranks) == replace(auto, max_fused_bytes=max_fused_bytes)
    for device, num_ranks in ((_H100, 3), ("NVIDIA A100", 2)):
        assert choice_of(config, device, num_ranks) == ExchangeChoice((), FUSED_BYTES)


@pytest.mark.parametrize(
    ("device", "num_ranks", "max_fused_bytes"), [(_H100, 2, 16 << 20), (_H100, 4, 512 << 10), (_H200, 2, 0)]
)
def test_measured_groups_fuse_up_to_the_size_where_that_was_fastest(
    tiny_llama: Path, device: str, num_ranks: int, max_fused_bytes: int
) -> None:
    """Two H200s have no times of it. A decode of 32 rows of a Llama-2-70B has 512 KiB."""
    choice = choice_of(EngineConfig(model=tiny_llama), device, num_ranks)
    assert choice.max_fused_bytes == max_fused_bytes
    assert choice.way(512 << 10) == choice.way(16 << 20) == "two_shot"
    assert choice.way(17 << 20) == "nccl"


def test_what_nobody_measured_is_nccls(tiny_llama: Path, tmp_path: Path) -> None:
    config = EngineConfig(model=tiny_llama, exchange="auto")
    assert choice_of(config, _H100, 2).max_bytes
    for device, num_ranks in ((_H100, 3), (_H100, 16), ("NVIDIA A100", 2)):
        assert choice_of(config, device, num_ranks) == ExchangeChoice()
    assert choice_of(EngineConfig(model=tiny_llama), _H100, 2) == choice_of(config, _H100, 2), "the default"
    assert choice_of(EngineConfig(model=tiny_llama, exchange="nccl"), _H100, 2) == ExchangeChoice()

    own = tmp_path / "times.yaml"
    own.write_text("groups: [{device: NVIDIA A100, ranks: 2, times: [{bytes: 512, nccl: 5.0, one_shot: 4.0}]}]")
    config = EngineConfig(model=tiny_llama, exchange="auto", exchange_times=own)
    assert choice_of(config, "NVIDIA A100", 2) == ExchangeChoice(((512, "one_shot"),))
    assert choice_of(config, _H100, 2) == ExchangeChoice()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "`engine.exchange_times`: file .* can't be read"),
        ("groups: []", "`groups`: "),
        ("groups: [{device: x, ranks: 2, times: [{bytes: 8}]}]", "`groups.0.times.0.nccl`: is missing"),
        (
            "groups: [{device: x, ranks: 2, times: [{bytes: 8, nccl: -1.0}]}]",
            "`groups.0.times.0.nccl`: must be more than 0",
        ),
    ],
)
def test_a_wrong_file_is_told_by_its_place(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "times.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_times(file)
