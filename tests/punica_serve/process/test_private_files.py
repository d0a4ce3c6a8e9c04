from pathlib import Path

import pytest

from file_modes import others_may
from punica_serve.process.private_files import make_private_folder, open_private

pytestmark = pytest.mark.usefixtures("any_umask")


def test_folders_that_are_missing_on_the_way_are_private_too(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "a/b/c")
    make_private_folder(tmp_path / "a/b/c")
    assert (tmp_path / "a/b/c").is_dir() and not others_may(tmp_path / "a")


def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o755)
    make_private_folder(tmp_path / "shared" / "own")
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o755
    assert not others_may(tmp_path / "shared" / "own")


def test_a_file_in_a_folders_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "folder"):
        with pytest.raises(OSError, match="file"):
            make_private_folder(folder)


def test_a_file_is_private(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "own")
    with open_private(tmp_path / "own" / "file", "xb") as file:
        file.write(b"secret")
    assert not others_may(tmp_path / "own") and (tmp_path / "own" / "file").read_bytes() == b"secret"
    with pytest.raises(FileExistsError):
        open_private(tmp_path / "own" / "file", "xb")
