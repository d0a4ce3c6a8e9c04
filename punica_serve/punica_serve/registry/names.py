"""What tenants and adapters may be called: safe in URLs, file names, logs and metrics."""

import re

from punica_serve.errors import InvalidRequest, NotFound

#: Whose the adapters of the config file are. Everybody may use them, and only an admin changes them.
SHARED_TENANT = "shared"
#: Who everybody is where there are no keys.
DEFAULT_TENANT = "default"
#: They exist always.
BUILTIN_TENANTS = frozenset({SHARED_TENANT, DEFAULT_TENANT})

#: Longer names are cut in messages.
MAX_SHOWN_CHARS = 200

_ADAPTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def is_adapter_name(name: str) -> bool:
    return _ADAPTER.fullmatch(name) is not None


def is_tenant_name(name: str) -> bool:
    return _TENANT.fullmatch(name) is not None


def check_adapter_name(name: str, *, base_name: str | None = None) -> None:
    """Raises InvalidRequest for a name that no adapter may have. ``base_name`` is what the API calls the base model."""
    if not is_adapter_name(name):
        raise InvalidRequest(
            f"adapter name {name[:MAX_SHOWN_CHARS]!r} must be 1 to 128 letters, digits and . _ : - from a letter or"
            " digit on",
            param="name",
        )
    if name == base_name:
        raise InvalidRequest(f"adapter name {name!r} is the base model's; choose another", param="name")
    if base_name is not None and name.startswith(f"{base_name}:"):
        # Some clients spell an adapter so: the API would look for the rest of the name.
        raise InvalidRequest(
            f"adapter name {name!r} begins with the base model's and a colon; choose another", param="name"
        )


def check_tenant_name(name: str) -> None:
    """Raises InvalidRequest. No capitals: Acme and acme would be taken for one another."""
    if not is_tenant_name(name):
        raise InvalidRequest(
            f"tenant name {name[:MAX_SHOWN_CHARS]!r} must be 1 to 63 small letters, digits and . _ - from a letter or"
            " digit on",
            param="tenant",
        )


def no_such_tenant(name: str) -> NotFound:
    """To be raised."""
    where = "`punica-serve tenants list`, or GET /v1/tenants for admins, lists all"
    return NotFound(f"no tenant is called {name[:MAX_SHOWN_CHARS]!r}; {where}", param="tenant")


def check_text(text: str | None, param: str) -> None:
    """Raises InvalidRequest for what no database takes as text."""
    try:
        if text is None or "\0" not in text.encode().decode():
            return
    except UnicodeEncodeError:
        pass
    raise InvalidRequest(f"`{param}` holds a character that is none: NUL, or half of a surrogate pair", param=param)


def full_name(tenant: str, name: str) -> str:
    """The name that means the same to everybody. Neither part has a slash."""
    return f"{tenant}/{name}"
