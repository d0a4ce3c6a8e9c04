"""The scheduler's URL, or a file that holds it if the scheduler may move."""

from pathlib import Path

from punica_serve.errors import ClusterUnavailable
from punica_serve.errors.plain_files import open_plain
from punica_serve.errors.reasons import reason_of

#: Precedes a file's name in place of a URL.
FROM_FILE = "@"
#: More than a URL takes.
_MAX_BYTES = 1 << 16


def current_url(given: str) -> str:
    """``given`` itself, or for ``@FILE`` the URL in that file. Raises ClusterUnavailable while the file has none.

    The file is read before each dial. So after the scheduler has moved, the new URL in the file is enough, and no
    process restarts.
    """
    if not given.startswith(FROM_FILE):
        return given
    path = Path(given.removeprefix(FROM_FILE))
    try:
        with open_plain(path) as file:
            url = file.read(_MAX_BYTES).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterUnavailable(f"the scheduler's URL can't be read from {path}: {reason_of(error)}") from error
    if not url:
        raise ClusterUnavailable(f"the scheduler's URL is not in {path} yet")
    return url
