from pathlib import Path

import pytest

from file_modes import others_may
from punica_scheduler.event_log_file import write_event_log


def test_an_event_log_is_written_entry_by_entry(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "folder" / "events.txt"
    write_event_log(["a\nb", 7], path)
    assert path.read_text() == "'a\\nb'\n7\n"
    assert str(path) in caplog.text


@pytest.mark.usefixtures("any_umask")
def test_an_event_log_holds_prompts_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    write_event_log([7], tmp_path / "new/folder/events.txt")
    assert not others_may(tmp_path / "new")


def test_a_folder_that_can_t_be_written_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    write_event_log([], tmp_path / "file" / "events.txt")
    assert "can't be written" in caplog.text
