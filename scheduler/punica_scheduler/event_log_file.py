"""Writes the event log of a scheduler that found a bug of ours to a file, for the bug report."""

import logging
from collections.abc import Iterable
from pathlib import Path

from punica_serve.process.private_files import make_private_folder, open_private

log = logging.getLogger(__name__)


def write_event_log(event_log: Iterable[object], path: Path) -> None:
    """One entry on each line. May block, since the process ends next. A failure to write is logged."""
    try:
        make_private_folder(path.parent)
        with open_private(path, "wb") as file:
            file.writelines(f"{entry!r}\n".encode() for entry in event_log)
    except OSError as error:
        log.error("the newest events before a bug of ours can't be written to %s: %s", path, error)
    else:
        log.error("the newest events before a bug of ours are in %s", path)
