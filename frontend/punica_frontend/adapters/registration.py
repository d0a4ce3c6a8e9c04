"""Registration of an adapter: its files are fetched to a folder, validated, put into the store, and named."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from punica_frontend.adapters.addresses import Address, new_address
from punica_frontend.adapters.staging import Staging
from punica_frontend.api.caller import Caller
from punica_frontend.generation.fair_slots import FairSlots, SlotLimits
from punica_frontend.scheduler_link.scheduler_client import SchedulerClient
from punica_serve.errors import AdapterNotFound, ClusterUnavailable, Conflict
from punica_serve.registry.names import full_name
from punica_serve.registry.records import AdapterVersion
from punica_serve.registry.registry import Registry
from punica_serve.store.adapter_store import AdapterStore
from punica_serve.store.validator import ValidatedAdapter

#: Fetches an adapter's files to an empty folder, within its own deadlines and limits.
Fetch = Callable[[Path], Awaitable[None]]
#: Validates the fetched files for their address.
Check = Callable[[Path, Address], Awaitable[ValidatedAdapter]]

#: Slots for adapters in transfer from a client or a source, which may be slow. Each uses disk space until it gets a
#: slot of CHECKS.
_ARRIVALS = SlotLimits(16, 4, 5.0, "too many adapters are being uploaded or fetched")
#: Slots for adapters that are here: each is read, checked and copied to the store. Each has a thread of its own, so the
#: slow ones of one tenant do not delay another tenant's that have a slot.
CHECKS = SlotLimits(8, 4, 60.0, "too many adapters are being registered")

#: How long a registration waits while files of the same bytes are being deleted.
REMOVAL_TIMEOUT_S = 30.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RegistrationRequest:
    """A client's request to register an adapter, from any kind of source."""

    name: str
    #: None for an upload.
    source_uri: str | None = None
    #: Refuse an existing name instead of making a new version.
    must_be_new: bool = False
    pinned: bool = False
    #: Load it to all GPUs at once.
    prefetch: bool = False


@dataclass(frozen=True, slots=True)
class Registered:
    adapter: AdapterVersion
    #: False if these bytes were already registered under this name.
    is_new: bool
    #: Full names that the short name would mean to the owner without this adapter.
    shadows: tuple[str, ...]


class Registrar:
    """Registers adapters. A failed registration leaves nothing behind and affects no served adapter."""

    def __init__(
        self,
        registry: Registry,
        store: AdapterStore,
        client: SchedulerClient,
        staging: Staging,
        check: Check,
        *,
        base_name: str,
    ) -> None:
        """``base_name`` is the API's name for the base model, which no adapter may have."""
        self._registry = registry
        self._store = store
        self._client = client
        self._staging = staging
        self._check = check
        self._base_name = base_name
        self._arrivals = FairSlots(_ARRIVALS)
        self._checks = FairSlots(CHECKS)

    async def register(self, caller: Caller, wanted: RegistrationRequest, fetch: Fetch) -> Registered:
        """Registers an adapter.

        Raises errors of the name, the source or the adapter; OutOfCapacity if too many are registered at once;
        StoreUnavailable and RegistryUnavailable.
        """
        address = await new_address(self._registry, caller, wanted.name, self._base_name)
        if wanted.must_be_new and (current := self._current(address)):
            raise Conflict(f"adapter {current.full_name} exists already", param="name")
        async with AsyncExitStack() as arrival:
            await arrival.enter_async_context(self._arrivals.slot(address.tenant_id))
            async with self._staging.folder() as folder:
                await fetch(folder)
                async with self._checks.slot(address.tenant_id):
                    await arrival.aclose()
                    validated = await self._check(folder, address)
                    adapter, is_new = await self._store_and_register(caller, wanted, address, folder, validated)
        if wanted.pinned and not adapter.pinned:
            adapter = await self._registry.set_pinned(adapter.tenant_id, adapter.name, True, by=caller.name)
        if adapter.pinned or wanted.prefetch:
            await self._prefetch(adapter)
        return Registered(adapter, is_new, self._registry.snapshot.shadowed_by(adapter.tenant_id, adapter))

    def _current(self, address: Address) -> AdapterVersion | None:
        full = full_name(address.tenant, address.name)
        with contextlib.suppress(AdapterNotFound):
            return self._registry.snapshot.adapter(address.tenant_id, full, is_admin=True)
        return None

    async def _store_and_register(
        self, caller: Caller, wanted: RegistrationRequest, address: Address, folder: Path, validated: ValidatedAdapter
    ) -> tuple[AdapterVersion, bool]:
        """Puts the files into the store before a row names them, so that every row's files exist.

        Files of the same bytes may be in deletion with an earlier adapter; waits until they are gone.
        """
        deadline_s = asyncio.get_running_loop().time() + REMOVAL_TIMEOUT_S
        while True:
            try:
                async with self._registry.keeping_files(validated.ref.digest):
                    uri = await self._store.put(folder, validated.ref.digest)
                    return await self._registry.register(
                        address.tenant_id,
                        address.name,
                        structs.replace(validated.ref, uri=uri),
                        source_uri=wanted.source_uri,
                        base_model=validated.base_model,
                        chat_template=validated.chat_template,
                        by=caller.name,
                        must_be_new=wanted.must_be_new,
                    )
            except Conflict as error:
                if error.retry_after_s is None or asyncio.get_running_loop().time() > deadline_s:
                    raise
                await asyncio.sleep(error.retry_after_s)

    async def _prefetch(self, adapter: AdapterVersion) -> None:
        """Loads the adapter. Without a scheduler it is only loaded later, when a request asks for it."""
        try:
            await self._client.prefetch(adapter.ref, pin=True if adapter.pinned else None)
        except ClusterUnavailable as error:
            log.warning("adapter %s is registered, but could not be prefetched: %s", adapter.full_name, error)
