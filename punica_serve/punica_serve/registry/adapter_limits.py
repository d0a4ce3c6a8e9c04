"""The limits of a tenant's adapters, checked within the transaction that adds one."""

from sqlalchemy import func, select

from punica_serve.errors import AdapterLimitReached, Forbidden, InvalidRequest
from punica_serve.numbers import counted
from punica_serve.registry.change import Change
from punica_serve.registry.records import AdapterVersion, Tenant
from punica_serve.registry.tables import adapters


async def check_room(change: Change, owner: Tenant, num_bytes: int, replaced: AdapterVersion | None) -> None:
    """Raises AdapterLimitReached; Forbidden or InvalidRequest where no deletion would make room.

    No other registration runs meanwhile, so the limits hold exactly.
    """
    _check_can_fit(owner, num_bytes)
    mine = select(func.count(), func.coalesce(func.sum(adapters.c.num_bytes), 0)).where(
        adapters.c.tenant_id == owner.tenant_id, adapters.c.is_live
    )
    count, total_bytes = (await change.connection.execute(mine)).one()
    total_bytes += num_bytes - (replaced.ref.num_bytes if replaced else 0)
    if owner.max_adapters is not None and replaced is None and count >= owner.max_adapters:
        most = counted(owner.max_adapters, "adapter")
        raise AdapterLimitReached(
            f"tenant {owner.name!r} may have {most} (`max_adapters`) and has {count}; delete one first, or ask an"
            " administrator for more",
            param="name",
        )
    max_bytes = owner.max_adapter_bytes
    if max_bytes is not None and total_bytes > max_bytes:
        raise AdapterLimitReached(
            f"the adapters of tenant {owner.name!r} may have {max_bytes} bytes together (`max_adapter_bytes`), and"
            f" would have {total_bytes}; delete some first, or ask an administrator for more",
            param="name",
        )


def _check_can_fit(owner: Tenant, num_bytes: int) -> None:
    """Raises Forbidden if the tenant may have no adapters, and InvalidRequest if this one alone exceeds its limit."""
    for quota, limit in (("max_adapters", owner.max_adapters), ("max_adapter_bytes", owner.max_adapter_bytes)):
        if limit == 0:
            raise Forbidden(
                f"tenant {owner.name!r} may register no adapters: its quota `{quota}` is 0; ask an administrator",
                param="name",
            )
    max_bytes = owner.max_adapter_bytes
    if max_bytes is not None and num_bytes > max_bytes:
        raise InvalidRequest(
            f"the adapter has {num_bytes} bytes, but all adapters of tenant {owner.name!r} together may have"
            f" {max_bytes}; register a smaller one, or ask an administrator to raise `max_adapter_bytes`",
            param="name",
        )
