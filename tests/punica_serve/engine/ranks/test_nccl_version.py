"""The warning about NCCL between hosts."""

import pytest

from punica_serve.engine.ranks.nccl_version import nccl_warning


@pytest.mark.parametrize(("version", "is_sound"), [((2, 28, 9), False), ((2, 30, 3), False), ((2, 30, 4), True)])
def test_versions_before_the_first_sound_one_are_warned_of(version: tuple[int, ...], is_sound: bool) -> None:
    warning = nccl_warning(version)
    assert (warning is None) == is_sound
    if warning is not None:
        assert warning.startswith(f"NCCL {'.'.join(map(str, version))} may deadlock in CUDA graphs across hosts")
