"""Who may do what with files."""

from pathlib import Path


def others_may(folder: Path) -> list[str]:
    """The folder, and what of all below it gives anybody but its owner any right; each with its mode."""
    modes = {path: path.lstat().st_mode for path in (folder, *folder.rglob("*"))}
    return [f"{path} {mode:o}" for path, mode in modes.items() if mode & 0o077]
