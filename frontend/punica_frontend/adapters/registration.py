"""An adapter on its way in: brought to a folder, validated, kept in the store, named by the registry."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from punica_frontend.adapters.addresses import new_address
from punica_frontend.adapters.staging import Staging
from punica_frontend.caller import Caller
from punica_frontend.fair_slots import FairSlots, SlotLimits
from punica_frontend.scheduler_client import SchedulerClient
from punica_serve.errors import AdapterNotFound, ClusterUnavailable, Conflict
from punica_serve.registry.records import AdapterVersion
from punica_serve.registry.registry import Registry
from punica_serve.store.adapter_store import AdapterStore
from punica_serve.store.intake import Intake

#: Brings an adapter's files to an empty folder, within deadlines and limits of its own.
Bring = Callable[[Path], Awaitable[None]]
#: Validates the files that were brought, for a tenant's adapter of a name.
Check = Callable[[Path, str, str], Awaitable[Intake]]

#: Each holds an adapter's weights in memory while they are checked. A client that still has to send its bytes can wait,
#: but not for ever.
_SLOTS = SlotLimits(8, 4, 60.0, "too many adapters are being registered")

#: How long a registration waits for files of the same bytes that are just being removed.
REMOVAL_TIMEOUT_S = 30.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a client wants to be registered, whichever way its bytes come."""

    name: str
    #: None for an upload.
    source_uri: str | None = None
    #: Refuse it when the name is taken, in place of making a new version.
    must_be_new: bool = False
    pinned: bool = False
    #: Bring it to all GPUs at once.
    prefetch: bool = False


@dataclass(frozen=True, slots=True)
class Registered:
    adapter: AdapterVersion
    #: False: these very bytes were registered under this name before.
    is_new: bool
    #: Full names of what its owner's requests for the short name would get without it.
    shadows: tuple[str, ...]


class Registrar:
    """Registers adapters. What fails on the way leaves nothing behind, and touches nothing that is served."""

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
        """``base_name`` is what the API calls the base model: no adapter may be called so."""
        self._registry = registry
        self._store = store
        self._client = client
        self._staging = staging
        self._check = check
        self._base_name = base_name
        self._slots = FairSlots(_SLOTS)

    async def register(self, caller: Caller, wish: Wish, bring: Bring) -> Registered:
        """Raises what is wrong with the name, the source or the adapter; StoreUnavailable and RegistryUnavailable."""
        tenant, name = new_address(caller, wish.name, self._base_name)
        before = self._current(tenant, name)
        if wish.must_be_new and before:
            raise Conflict(f"there is an adapter {before.full_name} already", param="name")
        async with self._slots.slot(tenant), self._staging.folder() as folder:
            await bring(folder)
            intake = await self._check(folder, tenant, name)
            adapter = await self._keep(caller, wish, (tenant, name), folder, intake)
        if wish.pinned and not adapter.pinned:
            adapter = await self._registry.set_pinned(tenant, name, True, by=caller.name)
        if adapter.pinned or wish.prefetch:
            await self._warm(adapter)
        is_new = before is None or before.version != adapter.version
        return Registered(adapter, is_new, self._registry.snapshot.shadowed_by(tenant, adapter))

    def _current(self, tenant: str, name: str) -> AdapterVersion | None:
        with contextlib.suppress(AdapterNotFound):
            return self._registry.snapshot.adapter(tenant, f"{tenant}/{name}", is_admin=True)
        return None

    async def _keep(
        self, caller: Caller, wish: Wish, address: tuple[str, str], folder: Path, intake: Intake
    ) -> AdapterVersion:
        """Puts the files into the store before a row names them, so that every row's files are there.

        Files of the same bytes may be on their way out, since an adapter with them was deleted: those have to be gone
        first.
        """
        deadline_s = asyncio.get_running_loop().time() + REMOVAL_TIMEOUT_S
        while True:
            try:
                async with self._registry.keeping_files(intake.ref.digest):
                    uri = await self._store.put(folder, intake.ref.digest)
                    return await self._registry.register(
                        *address,
                        structs.replace(intake.ref, uri=uri),
                        source_uri=wish.source_uri,
                        base_model=intake.base_model,
                        chat_template=intake.chat_template,
                        by=caller.name,
                        must_be_new=wish.must_be_new,
                    )
            except Conflict as error:
                if error.retry_after_s is None or asyncio.get_running_loop().time() > deadline_s:
                    raise
                await asyncio.sleep(error.retry_after_s)

    async def _warm(self, adapter: AdapterVersion) -> None:
        """The adapter is registered, and is fetched when it is asked for: without a scheduler it just is not yet."""
        try:
            await self._client.warm(adapter.ref, pin=True if adapter.pinned else None)
        except ClusterUnavailable as error:
            log.warning("adapter %s is registered, but not on its way to the GPUs: %s", adapter.full_name, error)
