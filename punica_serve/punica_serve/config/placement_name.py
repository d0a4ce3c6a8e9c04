"""Names of placement policies: those that ship, and your own, as FILE.py:CLASS."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

from punica_serve.config.fields import Name, resolve_folder

SHIPPED_PLACEMENTS = ("punica", "most_idle", "first_fit", "random", "rank_aware", "consolidate_slo")


def placement_name(text: str, folder: Path) -> str:
    """The name with its file made absolute, relative to ``folder``. Raises ValueError for what is no name."""
    return _resolve(text, lambda path: (folder / path.expanduser()).resolve())


def is_own(name: str) -> bool:
    """Whether the policy is a class in a file."""
    return ":" in name


def label_of(name: str) -> str:
    """The name in tables and pictures: for your own policy, that of its class."""
    return name.rpartition(":")[2]


def _resolve(text: str, absolute: Callable[[Path], Path]) -> str:
    if text in SHIPPED_PLACEMENTS:
        return text
    file, _, class_name = text.rpartition(":")
    if not file.endswith(".py") or not class_name.isidentifier():
        shipped = ", ".join(map(repr, SHIPPED_PLACEMENTS))
        raise ValueError(f"must be {shipped}, or your own as FILE.py:CLASS")
    return f"{absolute(Path(file))}:{class_name}"


def _validated(text: str, info: ValidationInfo) -> str:
    return _resolve(text, lambda path: resolve_folder(path, info))


#: A placement policy of the scheduler. A file is relative to the config's folder.
PlacementName = Annotated[Name, AfterValidator(_validated)]
