"""Where the scheduler is: a URL, or a file with the URL for a scheduler that moves."""

from pathlib import Path

from punica_serve.errors import ClusterUnavailable
from punica_serve.reasons import reason_of

#: In front of a file's name where a URL is expected.
FROM_FILE = "@"


def current_url(given: str) -> str:
    """``given`` itself, or what the file says now for ``@FILE``. Raises ClusterUnavailable while there is no such file.

    The file is read before each dial, so whoever moves the scheduler writes the new URL there, and no process restarts.
    """
    if not given.startswith(FROM_FILE):
        return given
    path = Path(given.removeprefix(FROM_FILE))
    try:
        url = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterUnavailable(f"the scheduler's URL can't be read from {path}: {reason_of(error)}") from error
    if not url:
        raise ClusterUnavailable(f"the scheduler's URL is not in {path} yet")
    return url
