"""A new file whose bytes others may read at once, and which is on the disk at the end."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from punica_serve.process.private_files import open_private
from punica_serve.store.side_thread import side_thread

Write = Callable[[bytes | memoryview], None]


@contextmanager
def synced_file(path: Path) -> Iterator[Write]:
    """Gives a function that appends to the file, for one thread. The end of ``with`` waits for the disk, except after
    an error.

    Written bytes go to the disk while others are appended, so little is left at the end.
    """
    with open_private(path, "wb") as file:
        descriptor = file.fileno()
        with side_thread(os.fsync) as syncing:

            def write(data: bytes | memoryview) -> None:
                file.write(data)
                file.flush()
                syncing.offer(descriptor)

            yield write
        os.fsync(descriptor)
