import errno
import os
from pathlib import Path

import pytest

from punica_serve.errors import ConfigError
from punica_serve.process.outputs import check_file, check_folder, writing


def test_nothing_stays_of_the_try(tmp_path: Path) -> None:
    check_folder(tmp_path / "a" / "b")
    check_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["/proc", "/proc/x", "/dev/null", "/dev/null/x"])
def test_a_folder_that_nobody_can_write_to_is_refused_to_the_superuser_too(folder: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^`--folder` {folder} is not a folder that can be written to: [A-Z].*; choose"
    ):
        check_folder(Path(folder), "--folder")


def test_a_file_that_is_there_stays_as_it_is_and_one_that_is_not_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("kept")
    check_file(tmp_path / "old")
    check_file(tmp_path / "sub" / "new")
    assert (tmp_path / "old").read_text() == "kept" and not (tmp_path / "sub").exists()


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^`--out` .* is not a file that can be written: Is a directory; choose another"
    ):
        check_file(tmp_path)
    with pytest.raises(ConfigError, match=r"^`--out` /proc is not a folder that can be written to: "):
        check_file(Path("/proc/x"))


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EDQUOT])
def test_what_fails_after_all_is_named_by_what_the_system_names_or_by_what_was_given(reason: int) -> None:
    told = os.strerror(reason)
    with (
        pytest.raises(ConfigError, match=rf"^`--out`: results can't be written: {told}; make room or choose"),
        writing(Path("results")),
    ):
        raise OSError(reason, told)
    named = pytest.raises(ConfigError, match=rf"^`--folder`: results/a.json can't be written: {told}; ")
    with named, writing(Path("results"), "--folder"):
        raise OSError(reason, told, "results/a.json")
