"""Resolves callers' names for adapters, and checks what a caller may change."""

from typing import NamedTuple

from punica_frontend.api.caller import Caller
from punica_serve.errors import AdapterNotFound, AdapterRejected, Forbidden, InvalidRequest
from punica_serve.registry.names import check_adapter_name, check_tenant_name
from punica_serve.registry.records import AdapterVersion
from punica_serve.registry.registry import Registry


class Address(NamedTuple):
    """The place of an adapter in the registry."""

    tenant_id: str
    tenant: str
    name: str


async def new_address(registry: Registry, caller: Caller, name: str, base_name: str) -> Address:
    """Returns the address for a new adapter: the caller's own tenant, unless an admin names another.

    Raises InvalidRequest for an invalid name, Forbidden for another tenant's, and NotFound for an unknown tenant.
    """
    tenant, slash, short = name.rpartition("/")
    if not slash:
        tenant = caller.tenant
    check_tenant_name(tenant)
    check_adapter_name(short, base_name=base_name)
    if tenant != caller.tenant and not caller.is_admin:
        raise Forbidden(
            f"your key belongs to tenant {caller.tenant!r}: leave out the part before the slash", param="name"
        )
    tenant_id = caller.tenant_id if tenant == caller.tenant else (await registry.tenant(tenant)).tenant_id
    return Address(tenant_id, tenant, short)


async def usable(registry: Registry, caller: Caller, name: str) -> AdapterVersion:
    """Returns the adapter of this name. Raises AdapterNotFound, AdapterRejected and InvalidRequest."""
    try:
        return await registry.adapter(caller.tenant_id, name, is_admin=caller.is_admin)
    except (AdapterNotFound, AdapterRejected, InvalidRequest) as error:
        error.param = "name"  # generate requests call it `lora_id`
        raise


async def loadable(registry: Registry, caller: Caller, name: str) -> AdapterVersion:
    """Returns the adapter of this name. Raises as ``usable``, and AdapterRejected for one of another base model."""
    adapter = await usable(registry, caller, name)
    try:
        registry.snapshot.shared.check_served(adapter)
    except AdapterRejected as error:
        error.param = "name"
        raise
    return adapter


async def changeable(registry: Registry, caller: Caller, name: str) -> AdapterVersion:
    """Returns the adapter of this name. Raises AdapterNotFound, and Forbidden if the caller may only use it."""
    adapter = await usable(registry, caller, name)
    if adapter.tenant_id != caller.tenant_id and not caller.is_admin:
        raise Forbidden(
            f"{adapter.full_name} belongs to another tenant: you may use it, but only its owner may change it",
            param="name",
        )
    return adapter
