"""The exchange of each size, from measured times."""

from pathlib import Path

import pytest

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.ranks.exchange_choice import (
    FUSED_BYTES,
    ExchangeChoice,
    ExchangeTime,
    LayerWay,
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
    ("measured", "borders"),
    [
        ([(5.0, None, 9.0), (6.0, None, 9.0), (9.0, None, 9.0)], ((16, "fused"),)),
        ([(5.0, 4.0, 9.0), (6.0, 7.0, 9.0), (6.0, None, 9.0)], ((8, "flashinfer"), (32, "fused"))),
        ([(9.0, None, 5.0), (None, 4.0, 9.0), (6.0, 6.0, 9.0)], ((8, "unfused"), (16, "flashinfer"), (32, "fused"))),
        ([(5.0, 5.0, 4.0), (6.0, 9.0, 6.0), (None, None, 3.0)], ()),
        ([(5.0, None, None), (None, 6.0, None), (6.0, 5.0, None)], ()),
    ],
)
def test_a_layer_takes_the_fastest_of_those_that_are_compared_with_three_kernels(
    measured: list[tuple[float | None, float | None, float | None]], borders: tuple[tuple[int, LayerWay], ...]
) -> None:
    times = [
        ExchangeTime(bytes=8 << place, nccl=9.0, one_shot=8.0, fused=ours, flashinfer=theirs, unfused=three)
        for place, (ours, theirs, three) in enumerate(measured)
    ]
    choice = choose(times[::-1])
    assert choice == ExchangeChoice(((32, "one_shot"),), borders)
    assert ("; with the norm: " in str(choice)) == bool(borders)


def test_a_layers_sizes_between_take_the_larger_ones_way() -> None:
    choice = ExchangeChoice((), ((8, "flashinfer"), (16, "unfused"), (32, "fused")))
    ways = ["flashinfer", "flashinfer", "unfused", "fused", "unfused"]
    assert [choice.layer_way(size) for size in (1, 8, 9, 17, 33)] == ways
    assert (choice.max_layer_bytes("fused"), choice.max_layer_bytes("flashinfer")) == (32, 8)
    assert not choice.is_nccl
    assert str(choice).endswith(
        "with the norm: flashinfer up to 8 bytes, unfused up to 16 bytes, fused up to 32 bytes, unfused beyond"
    )


def test_without_flashinfer_its_sizes_go_to_the_next_best() -> None:
    times = [
        ExchangeTime(bytes=8, nccl=9.0, fused=6.0, flashinfer=5.0, unfused=9.0),
        ExchangeTime(bytes=16, nccl=9.0, flashinfer=5.0, unfused=9.0),
    ]
    assert choose(times).layer_borders == ((16, "flashinfer"),)
    assert choose(times, has_flashinfer=False).layer_borders == ((8, "fused"),)


@pytest.mark.parametrize("way", ["fused", "flashinfer"])
def test_one_kernel_can_be_set_for_groups_of_any_size(tiny_llama: Path, way: LayerWay) -> None:
    config = EngineConfig.model_validate({"model": tiny_llama, "exchange": way})
    for device, num_ranks in ((_H100, 4), (_H200, 2), (_H100, 3), ("NVIDIA A100", 2)):
        auto = choice_of(EngineConfig(model=tiny_llama), device, num_ranks)
        choice = choice_of(config, device, num_ranks)
        assert choice == ExchangeChoice(auto.borders, ((FUSED_BYTES, way),))
    beyond = choice_of(config, _H100, 2).layer_borders
    assert beyond == (((16 << 20, "fused"),) if way == "fused" else ((FUSED_BYTES, way), (16 << 20, "fused")))


def test_flashinfer_can_be_set_where_it_is_missing(tiny_llama: Path) -> None:
    config = EngineConfig(model=tiny_llama, exchange="flashinfer")
    auto = choice_of(EngineConfig(model=tiny_llama), _H100, 2)
    assert choice_of(config, _H100, 2, has_flashinfer=False) == auto


@pytest.mark.parametrize(
    ("device", "num_ranks", "max_fused_bytes"), [(_H100, 2, 16 << 20), (_H100, 4, 512 << 10), (_H200, 2, 0)]
)
def test_measured_groups_fuse_up_to_the_size_where_that_was_fastest(
    tiny_llama: Path, device: str, num_ranks: int, max_fused_bytes: int
) -> None:
    """Two H200s have no times of it. A decode of 32 rows of a Llama-2-70B has 512 KiB."""
    choice = choice_of(EngineConfig(model=tiny_llama), device, num_ranks)
    assert choice.max_layer_bytes("fused") == max_fused_bytes
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
