from pathlib import Path

import pytest

from punica_scheduler.story_file import write_story


def test_a_story_is_written_entry_by_entry(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "folder" / "story.txt"
    write_story(["a\nb", 7], path)
    assert path.read_text() == "'a\\nb'\n7\n"
    assert str(path) in caplog.text


def test_a_folder_that_can_t_be_written_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    write_story([], tmp_path / "file" / "story.txt")
    assert "can't be written" in caplog.text
