"""The revision of SQLite's file, as a poll reads it."""

import sqlite3
from pathlib import Path

from punica_serve.registry.sqlite_revision import FileRevision, RevisionReader


def write(file: Path, revision: int) -> None:
    connection = sqlite3.connect(file)
    with connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE IF NOT EXISTS counter (revision)")
        connection.execute("DELETE FROM counter")
        connection.execute("INSERT INTO counter VALUES (?)", (revision,))
    connection.close()


def revision_of(found: FileRevision | None) -> int:
    assert found is not None
    return found.revision


def test_each_read_has_the_newest_revision(tmp_path: Path) -> None:
    file = tmp_path / "a?b#c%41.db"
    reader = RevisionReader(file)
    for revision in (1, 2):
        write(file, revision)
        assert revision_of(reader.read()) == revision
    reader.close()
    assert revision_of(reader.read()) == 2
    reader.close()


def test_no_file_has_no_revision_and_none_is_made(tmp_path: Path) -> None:
    file = tmp_path / "registry.db"
    reader = RevisionReader(file)
    assert reader.read() is None
    assert not file.exists()
    write(file, 3)
    assert revision_of(reader.read()) == 3
    reader.close()


def test_another_file_at_the_path_is_opened(tmp_path: Path) -> None:
    file, other = tmp_path / "registry.db", tmp_path / "other.db"
    write(file, 5)
    write(other, 5)
    reader = RevisionReader(file)
    before = reader.read()
    file.rename(tmp_path / "old.db")
    other.rename(file)
    after = reader.read()
    assert revision_of(before) == revision_of(after) == 5
    assert before != after
    reader.close()


def test_a_damaged_file_tells_no_revision_until_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "registry.db"
    file.write_bytes(b"x" * 4096)
    reader = RevisionReader(file)
    assert reader.read() is None
    file.unlink()
    write(file, 1)
    assert revision_of(reader.read()) == 1
    reader.close()


def test_a_registry_without_its_counter_tells_no_revision(tmp_path: Path) -> None:
    """As while a dump is loaded into it."""
    file = tmp_path / "registry.db"
    write(file, 1)
    connection = sqlite3.connect(file)
    with connection:
        connection.execute("DELETE FROM counter")
    connection.close()
    reader = RevisionReader(file)
    assert reader.read() is None
    write(file, 2)
    assert revision_of(reader.read()) == 2
    reader.close()
