"""What a caller's name for an adapter means, and whether it may change what it means."""

from punica_frontend.caller import Caller
from punica_serve.errors import AdapterNotFound, AdapterRejected, Forbidden, InvalidRequest
from punica_serve.registry.names import check_adapter_name, check_tenant_name
from punica_serve.registry.records import AdapterVersion
from punica_serve.registry.registry import Registry


def new_address(caller: Caller, name: str, base_name: str) -> tuple[str, str]:
    """(tenant, name) of an adapter to register: the caller's own, unless an admin names another tenant.

    Raises InvalidRequest for a name that no adapter may have, and Forbidden for another tenant's.
    """
    tenant, slash, short = name.rpartition("/")
    if not slash:
        tenant = caller.tenant
    check_tenant_name(tenant)
    check_adapter_name(short, base_name=base_name)
    if tenant != caller.tenant and not caller.is_admin:
        raise Forbidden(f"your key is of tenant {caller.tenant!r}: leave out the part before the slash", param="name")
    return tenant, short


async def usable(registry: Registry, caller: Caller, name: str) -> AdapterVersion:
    """The adapter of this name. Raises AdapterNotFound, and what else keeps a name from meaning one."""
    try:
        return await registry.adapter(caller.tenant, name, is_admin=caller.is_admin)
    except (AdapterNotFound, AdapterRejected, InvalidRequest) as error:
        error.param = "name"  # which requests for text call `lora_id`
        raise


async def changeable(registry: Registry, caller: Caller, name: str) -> AdapterVersion:
    """The adapter of this name. Raises AdapterNotFound, and Forbidden for one that the caller may use, not change."""
    adapter = await usable(registry, caller, name)
    if adapter.tenant != caller.tenant and not caller.is_admin:
        raise Forbidden(f"{adapter.full_name} is not yours: you may use it, and its owner changes it", param="name")
    return adapter
