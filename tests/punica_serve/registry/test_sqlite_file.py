"""SQLite's file: where it is, and what happens when it is removed, or another moved to its place, while it is open."""

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from punica_serve.config.registry_section import sqlite_url
from punica_serve.errors import RegistryUnavailable
from punica_serve.registry.registry import Registry
from registries import ref_of

pytestmark = pytest.mark.anyio


def move(file: Path, to: Path) -> None:
    """With the log and its index, as an operator does."""
    for suffix in ("", "-wal", "-shm"):
        shutil.move(f"{file}{suffix}", f"{to}{suffix}")


def copy(file: Path, to: Path) -> None:
    """As `.backup` copies it: with what is in the log."""
    with sqlite3.connect(file) as source, sqlite3.connect(to) as target:
        source.backup(target)
    source.close()
    target.close()


@pytest.mark.parametrize("name", ["a?b", "a#b", "a%41b", "a b", "a?mode=memory&uri=true", "a:b@c", "ä"])
async def test_any_name_of_a_folder_means_that_folder(tmp_path: Path, name: str) -> None:
    registry = await Registry.open(sqlite_url(tmp_path / name / "registry.db"))
    await registry.close()
    assert os.listdir(tmp_path) == [name]
    assert "registry.db" in os.listdir(tmp_path / name)


async def test_a_removed_file_takes_no_changes_until_it_is_back(tmp_path: Path) -> None:
    file, away = tmp_path / "registry.db", tmp_path / "away.db"
    registry = await Registry.open(f"sqlite:///{file}")
    await registry.register("default", "x", ref_of("a"), by="me")
    move(file, away)
    with pytest.raises(RegistryUnavailable, match=r"registry\.db.* gone"):
        await registry.register("default", "y", ref_of("b"), by="me")
    with pytest.raises(RegistryUnavailable):
        await registry.refresh()
    assert registry.snapshot.digests() == {"a"}
    assert not file.exists(), "an empty one is made by no running process"
    move(away, file)
    await registry.register("default", "y", ref_of("b"), by="me")
    await registry.close()
    reopened = await Registry.open(f"sqlite:///{file}")
    assert reopened.snapshot.digests() == {"a", "b"}
    await reopened.close()


async def test_a_file_that_was_moved_to_its_place_is_read_anew_and_takes_the_changes(tmp_path: Path) -> None:
    file, backup = tmp_path / "registry.db", tmp_path / "backup.db"
    registry = await Registry.open(f"sqlite:///{file}")
    await registry.register("default", "x", ref_of("a"), by="me")
    copy(file, backup)
    other = await Registry.open(f"sqlite:///{backup}")
    await other.register("default", "theirs", ref_of("b"), by="me")
    await other.close()
    await registry.register("default", "lost", ref_of("c"), by="me")
    revision = registry.snapshot.revision
    move(file, tmp_path / "old.db")
    shutil.move(backup, file)
    snapshot = await registry.refresh()
    assert snapshot.revision == revision, "as new as what the registry knew, and yet another"
    assert snapshot.digests() == {"a", "b"}
    await registry.register("default", "new", ref_of("d"), by="me")
    await registry.close()
    reopened = await Registry.open(f"sqlite:///{file}")
    assert reopened.snapshot.digests() == {"a", "b", "d"}
    await reopened.close()


async def test_a_copy_that_is_restored_into_the_open_file_is_read_anew(tmp_path: Path) -> None:
    """As `.restore` does it."""
    file, backup = tmp_path / "registry.db", tmp_path / "backup.db"
    registry = await Registry.open(f"sqlite:///{file}")
    await registry.register("default", "x", ref_of("a"), by="me")
    copy(file, backup)
    await registry.register("default", "lost", ref_of("c"), by="me")
    copy(backup, file)
    assert (await registry.refresh()).digests() == {"a"}
    await registry.register("default", "new", ref_of("d"), by="me")
    await registry.close()
    reopened = await Registry.open(f"sqlite:///{file}")
    assert reopened.snapshot.digests() == {"a", "d"}
    await reopened.close()
