"""The config section `dummy_adapters`."""

from pathlib import Path
from typing import Any

import pytest

from punica_serve.config.cluster import ClusterConfig, parse_config
from punica_serve.errors import ConfigError


def _parse(tmp_path: Path, **section: Any) -> ClusterConfig:
    document = {"engine": {"model": "shape:llama-2-7b"}, "dummy_adapters": {"count": 2, **section}}
    return parse_config(document, source="c.yaml", folder=tmp_path)


def test_a_rank_is_one_number_or_a_list(tmp_path: Path) -> None:
    assert _parse(tmp_path, rank=8).dummy_adapters.rank == (8,)
    assert _parse(tmp_path, rank=[8, 128]).dummy_adapters.rank == (8, 128)


def test_more_than_memory_holds_are_refused(tmp_path: Path) -> None:
    """They are made when a config is read, and would take all memory before anything could say so."""
    with pytest.raises(ConfigError, match=r"`dummy_adapters\.count`: must be 1000000 or less, got 2147483648"):
        _parse(tmp_path, count=1 << 31)


@pytest.mark.parametrize(
    ("rank", "message"),
    [
        (0, "rank.0`: must be 1 or more, got 0"),
        ([8, 257], "rank.1`: must be 256 or less, got 257"),
        ([8, "16"], "rank.1`: must be a whole number, got '16'"),
        ([], "rank`: must be a non-empty list"),
    ],
)
def test_a_rank_that_can_not_be_is_refused(rank: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        _parse(tmp_path, rank=rank)
    assert f"`dummy_adapters.{message}" in raised.value.message
