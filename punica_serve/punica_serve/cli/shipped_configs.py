"""Config files that the package ships, by name: `demo`, `gpu`, `sim/figure13`."""

import os
from pathlib import Path

from punica_serve.errors import ConfigError

_PACKAGE = Path(__file__).parents[1]
#: An installed wheel has them inside the package, a checkout at its root.
_FOLDERS = (_PACKAGE / "configs", _PACKAGE.parents[1] / "configs")


def find_config(given: Path) -> Path:
    """The config file at a path, or the shipped one of that name. Raises ConfigError, which lists the names."""
    if os.path.isfile(given):  # Path's own raises for a name that is too long
        return given
    shipped = _shipped()
    if found := shipped.get(given.as_posix()):
        return found
    names = ", ".join(shipped)
    what = "is a folder" if os.path.isdir(given) else "is no file" if os.path.exists(given) else "does not exist"
    message = f"config file {given.absolute()} {what}, and is not the name of a shipped config; there are {names}"
    raise ConfigError(f"{message}; give a file or one of these names", param="config")


def _shipped() -> dict[str, Path]:
    """Name -> file. Compose files' configs are left out: they refer to hosts that only containers can see."""
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    files = sorted(folder.rglob("*.yaml")) if folder else []
    names = {file.relative_to(folder or _PACKAGE).with_suffix("").as_posix(): file for file in files}
    return {name: file for name, file in names.items() if not name.startswith("compose")}
