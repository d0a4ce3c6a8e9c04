"""Names that clients gave to fields: shown safely, and compared with the known names."""

import difflib
import re
from collections.abc import Iterable

#: Longer than any real name. Comparing names takes quadratic time.
MAX_NAME_CHARS = 64

_ODD = re.compile(r"[^A-Za-z0-9_.-]")


def shown(name: str) -> str:
    """Returns the name with plain characters only, and shortened, for errors, headers, logs and metrics."""
    return _ODD.sub("?", name[:MAX_NAME_CHARS]) + ("..." if len(name) > MAX_NAME_CHARS else "")


def is_plain(name: str) -> bool:
    """Whether ``shown`` leaves it unchanged."""
    return 0 < len(name) <= MAX_NAME_CHARS and not _ODD.search(name)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Returns the one of ``names`` that ``name`` may be a misspelling of."""
    if not is_plain(name):
        return None
    close = difflib.get_close_matches(name, filter(is_plain, names), n=1)
    return close[0] if close else None
