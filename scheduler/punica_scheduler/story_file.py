"""What led to a bug of ours, written down for a test that replays it."""

import logging
from collections.abc import Iterable
from pathlib import Path

log = logging.getLogger(__name__)


def write_story(story: Iterable[object], path: Path) -> None:
    """An entry a line. It may block, for the process ends next; where it can't be written, that is logged."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{entry!r}\n" for entry in story), encoding="utf-8")
    except OSError as error:
        log.error("the newest events before a bug of ours can't be written to %s: %s", path, error)
    else:
        log.error("the newest events before a bug of ours are in %s", path)
