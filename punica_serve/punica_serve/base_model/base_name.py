"""Whether an adapter names the base model that it is served on."""

from pathlib import PurePath


def is_other_base(named: str | None, base: str) -> bool:
    """Whether ``base_model_name_or_path`` names another model than ``base``; one that names none does too.

    Both are paths or Hub ids, of which the last parts are compared: a hint, where sizes alone tell what fits.
    """
    return PurePath(named or "").name != PurePath(base).name
