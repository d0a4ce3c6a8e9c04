"""SQLite's file: where it is, and what happens when it is removed, or another moved to its place, while it is open."""

import asyncio
import os
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from punica_serve.config.registry_section import sqlite_url
from punica_serve.errors import RegistryUnavailable
from punica_serve.registry.records import Usage
from punica_serve.registry.registry import Registry
from registries import ref_of
from waits import DEADLINE_S

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
    registry = await Registry.open(sqlite_url(tmp_path / name / "registry.db"), deadline_s=60.0)
    await registry.close()
    assert os.listdir(tmp_path) == [name]
    assert "registry.db" in os.listdir(tmp_path / name)


async def test_a_removed_file_takes_no_changes_until_it_is_back(tmp_path: Path) -> None:
    file, away = tmp_path / "registry.db", tmp_path / "away.db"
    registry = await Registry.open(f"sqlite:///{file}", deadline_s=60.0)
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
    reopened = await Registry.open(f"sqlite:///{file}", deadline_s=60.0)
    assert reopened.snapshot.digests() == {"a", "b"}
    await reopened.close()


async def test_a_file_that_was_moved_to_its_place_is_read_anew_and_takes_the_changes(tmp_path: Path) -> None:
    file, backup = tmp_path / "registry.db", tmp_path / "backup.db"
    registry = await Registry.open(f"sqlite:///{file}", deadline_s=60.0)
    await registry.register("default", "x", ref_of("a"), by="me")
    copy(file, backup)
    other = await Registry.open(f"sqlite:///{backup}", deadline_s=60.0)
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
    reopened = await Registry.open(f"sqlite:///{file}", deadline_s=60.0)
    assert reopened.snapshot.digests() == {"a", "b", "d"}
    await reopened.close()


async def test_a_copy_that_is_restored_into_the_open_file_is_read_anew(tmp_path: Path) -> None:
    """As `.restore` does it."""
    file, backup = tmp_path / "registry.db", tmp_path / "backup.db"
    registry = await Registry.open(f"sqlite:///{file}", deadline_s=60.0)
    await registry.register("default", "x", ref_of("a"), by="me")
    copy(file, backup)
    await registry.register("default", "lost", ref_of("c"), by="me")
    copy(backup, file)
    assert (await registry.refresh()).digests() == {"a"}
    await registry.register("default", "new", ref_of("d"), by="me")
    await registry.close()
    reopened = await Registry.open(f"sqlite:///{file}", deadline_s=60.0)
    assert reopened.snapshot.digests() == {"a", "d"}
    await reopened.close()


async def test_a_disk_that_does_not_answer_holds_up_nothing_but_the_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a network mount whose server is gone."""
    file, stat, answers = tmp_path / "registry.db", os.stat, threading.Event()
    registry = await Registry.open(f"sqlite:///{file}", deadline_s=60.0)
    await registry.register("default", "x", ref_of("a"), by="me")
    hung: list[str] = []
    released: list[bool] = []

    def hangs(path: Any, **options: Any) -> os.stat_result:
        if path == file:
            hung.append(threading.current_thread().name)
            released.append(answers.wait(DEADLINE_S))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", hangs)
    with monkeypatch.context() as shorter:  # nothing is written meanwhile, so nothing takes long that may not fail
        shorter.setattr(registry._database, "deadline_s", 3.0)
        shorter.setattr(registry._database._file, "_wait_s", 1.5)
        changes = [registry.register("default", f"y{i}", ref_of("b"), by="me") for i in range(3)]
        *changed, _ = await asyncio.gather(*changes, registry.refresh(), return_exceptions=True)
    assert [type(outcome) for outcome in changed] == [RegistryUnavailable] * 3
    assert len(hung) == 1, "one thread waits for the disk, however many ask"
    assert registry.snapshot.digests() == {"a"}
    answers.set()
    await until_it_answers(registry)
    assert all(released), "the event loop went on, so the disk could answer"
    assert (await registry.register("default", "y", ref_of("b"), by="me"))[0].version == 1
    await registry.close()


async def until_it_answers(registry: Registry) -> None:
    async with asyncio.timeout(60.0):
        while True:
            try:
                await registry.refresh()
                return
            except RegistryUnavailable:
                await asyncio.sleep(0.05)


async def test_a_file_that_does_not_change_is_not_read_again(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "registry.db")
    registry, other = [await Registry.open(url, deadline_s=60.0) for _ in range(2)]
    follower = registry._follower
    for digest in "ab":
        version, _ = await other.register("default", "x", ref_of(digest), by="me")
        before = follower._num_readings
        for _ in range(10):
            await follower.poll()
        assert registry.snapshot.digests() == {version.ref.digest}
        assert follower._num_readings == before + 1
    await registry.close()
    await other.close()


async def test_usage_alone_has_nobody_read_the_file_again(tmp_path: Path) -> None:
    registry = await Registry.open(sqlite_url(tmp_path / "registry.db"), deadline_s=60.0)
    follower = registry._follower
    before = follower._num_readings
    for number in range(1, 4):
        await registry.add_usage(
            [Usage(0, "default", "default", None, None, None, 1, 2, 0, 3, 0.5)], source="me", number=number
        )
        await follower.poll()
    assert follower._num_readings == before
    await registry.close()
