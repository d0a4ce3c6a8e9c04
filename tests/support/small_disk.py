"""A disk that is soon full."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, num_kib: int) -> Iterator[Path]:
    """A file system of its own in a folder that it makes. Where none may be mounted, the test is skipped."""
    folder.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", f"size={num_kib}k", "tmpfs", str(folder))
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip("only root may mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(("umount", "-l", str(folder)), check=True)


def fill(folder: Path) -> None:
    """Until not a byte more fits."""
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 512)
        except OSError:
            pass
