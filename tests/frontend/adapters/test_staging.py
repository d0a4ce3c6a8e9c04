import asyncio
import errno
import os
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from file_modes import others_may
from punica_frontend.adapters.staging import Staging
from punica_serve.errors import StoreUnavailable
from punica_serve.store.locked_folder import LockedFolder

#: A frontend that dies with an adapter on its way in.
_DYING = """
import asyncio, os, pathlib, sys
from punica_frontend.adapters.staging import Staging
async def main():
    async with Staging(pathlib.Path(sys.argv[1])).folder() as folder:
        (folder / "half").write_bytes(bytes(100))
        os._exit(9)
asyncio.run(main())
"""


def names(folder: Path) -> list[str]:
    return os.listdir(folder)


async def test_folders_come_and_go(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "staging")
    async with staging.folder() as first, staging.folder() as second:
        assert first != second
        (first / "file").touch()
    assert names(first.parent) == []
    staging.close()
    assert names(tmp_path / "staging") == []


@pytest.mark.usefixtures("any_umask")
async def test_folders_are_private(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "data/staging")
    async with staging.folder():
        assert not others_may(tmp_path / "data")
    staging.close()


async def test_registrations_that_come_first_together_share_the_locked_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def own_slowly(path: Path) -> LockedFolder | None:
        time.sleep(0.05)  # so that all are in the midst of it
        return own(path)

    own = LockedFolder.own
    monkeypatch.setattr(LockedFolder, "own", own_slowly)
    staging, cleaning = Staging(tmp_path), Staging(tmp_path)
    async with AsyncExitStack() as stack:
        entered = (stack.enter_async_context(staging.folder()) for _ in range(4))
        folders = await asyncio.gather(*entered)
        await cleaning.clean()
        assert all(folder.is_dir() for folder in folders)
        assert len({folder.parent for folder in folders}) == 1
    staging.close()


async def test_leftovers_of_dead_processes_are_removed_and_folders_of_living_ones_kept(tmp_path: Path) -> None:
    living, cleaning = Staging(tmp_path), Staging(tmp_path)
    dying = await asyncio.create_subprocess_exec(sys.executable, "-c", _DYING, str(tmp_path))
    assert await dying.wait() == 9
    async with living.folder() as folder, cleaning.folder() as own:
        assert len(names(tmp_path)) == 3
        await cleaning.clean()
        assert len(names(tmp_path)) == 2
        assert {folder.parent.name, own.parent.name} == {*names(tmp_path)}
    living.close()
    cleaning.close()


async def test_a_full_disk_is_the_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    with pytest.raises(StoreUnavailable, match="full"):
        async with Staging(tmp_path).folder():
            pass
