"""Valid names of tenants and adapters: safe in URLs, file names, logs and metrics."""

import re

from punica_serve.errors import InvalidRequest, NotFound

#: Owner of the config file's adapters. Everybody may use them; only an administrator can change them.
SHARED_TENANT = "shared"
#: Everybody's tenant while there are no keys.
DEFAULT_TENANT = "default"
#: They always exist, and their names are their ids, so that nobody can delete and recreate them.
BUILTIN_TENANTS = frozenset({SHARED_TENANT, DEFAULT_TENANT})

#: Actions on an adapter. Routes end in them, so no adapter may have one of these names.
ACTIONS = ("pin", "unpin", "prefetch")

#: Longer names are cut in messages.
MAX_SHOWN_CHARS = 200

_ADAPTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def is_adapter_name(name: str) -> bool:
    return _ADAPTER.fullmatch(name) is not None


def is_tenant_name(name: str) -> bool:
    return _TENANT.fullmatch(name) is not None


def is_tenant_id(text: str) -> bool:
    """Whether it has the form of a tenant id: hexadecimal digits, or a built-in tenant's name."""
    return is_tenant_name(text)


def check_adapter_name(name: str, *, base_name: str | None = None) -> None:
    """Raises InvalidRequest for an invalid adapter name. ``base_name`` is the API's name of the base model."""
    if not is_adapter_name(name):
        raise InvalidRequest(
            f"adapter name {name[:MAX_SHOWN_CHARS]!r} must be 1 to 128 letters, digits and . _ : - and begin with a"
            " letter or digit",
            param="name",
        )
    if name in ACTIONS:
        raise InvalidRequest(f"adapter name {name!r} is reserved for a route; choose another", param="name")
    if name == base_name:
        raise InvalidRequest(f"adapter name {name!r} is the base model's; choose another", param="name")
    if base_name is not None and name.startswith(f"{base_name}:"):
        # Some clients write an adapter in this form, so the API would look for the rest of the name.
        raise InvalidRequest(
            f"adapter name {name!r} begins with the base model's name and a colon; choose another", param="name"
        )


def check_tenant_name(name: str) -> None:
    """Raises InvalidRequest. Capitals are not allowed: Acme and acme would be confused."""
    if not is_tenant_name(name):
        raise InvalidRequest(
            f"tenant name {name[:MAX_SHOWN_CHARS]!r} must be 1 to 63 small letters, digits and . _ - and begin with a"
            " letter or digit",
            param="tenant",
        )


def no_such_tenant(name: str) -> NotFound:
    """The error for an unknown tenant name."""
    where = "list them with `punica-serve tenants list`, or as an administrator with GET /v1/tenants"
    return NotFound(f"there is no tenant {name[:MAX_SHOWN_CHARS]!r}; {where}", param="tenant")


def tenant_is_gone() -> NotFound:
    """The error for the id of a tenant that was deleted or never existed."""
    return NotFound("the tenant was deleted; its keys and adapters ended with it", param="tenant")


def check_text(text: str | None, param: str) -> None:
    """Raises InvalidRequest for text that databases don't accept."""
    try:
        if text is None or "\0" not in text.encode().decode():
            return
    except UnicodeEncodeError:
        pass
    raise InvalidRequest(
        f"`{param}` holds an invalid character: NUL, or half of a surrogate pair; remove it", param=param
    )


def full_name(tenant: str, name: str) -> str:
    """The unambiguous name, TENANT/NAME. Neither part contains a slash."""
    return f"{tenant}/{name}"
