"""All that the life of adapters needs, put together."""

import asyncio
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Never, Self

from punica_frontend.adapters.deletions import Deletions
from punica_frontend.adapters.pins import Pins
from punica_frontend.adapters.registration import Check, Registrar
from punica_frontend.adapters.staging import Staging
from punica_frontend.adapters.sweep import Sweep
from punica_frontend.adapters.warden import Warden
from punica_frontend.scheduler_client import SchedulerClient
from punica_frontend.templates import TemplateRenderer
from punica_serve.config import ClusterConfig
from punica_serve.model_config import ModelConfig
from punica_serve.registry.names import full_name
from punica_serve.registry.registry import Registry
from punica_serve.store.adapter_store import AdapterStore
from punica_serve.store.intake import Intake, IntakeDesk
from punica_serve.store.sources import Sources
from punica_serve.store.upload import Uploads

#: To read and check all of an adapter's weights.
_CHECK_TIMEOUT_S = 120.0


def checking(desk: IntakeDesk, templates: TemplateRenderer) -> Check:
    """The reader decides, and of an adapter's own chat template the compiler, where a stranger's program may run."""

    async def check(folder: Path, tenant: str, name: str) -> Intake:
        intake = await desk.check(folder, full_name(tenant, name))
        if intake.chat_template is not None:
            await templates.check(intake.chat_template, tenant)
        return intake

    return check


@dataclass(frozen=True, kw_only=True)
class Lifecycle:
    """What the routes use, and the task behind them."""

    registrar: Registrar
    sources: Sources
    uploads: Uploads
    warden: Warden
    #: Of one adapter's weights.
    max_adapter_bytes: int
    _staging: Staging

    @classmethod
    def of(
        cls,
        config: ClusterConfig,
        model: ModelConfig,
        registry: Registry,
        client: SchedulerClient,
        templates: TemplateRenderer,
    ) -> Self:
        """Does no input or output. Raises ConfigError for a store's URL that is none."""
        settings = config.store
        store = AdapterStore(
            config.store_url,
            settings.options,
            timeout_s=settings.timeout_s,
            transfer_timeout_s=settings.transfer_timeout_s,
        )
        desk = IntakeDesk(
            model,
            strict_base=config.strict_base,
            num_lora_pages=config.engine.num_lora_pages,
            max_adapter_bytes=settings.max_adapter_bytes,
            timeout_s=_CHECK_TIMEOUT_S,
        )
        staging = Staging(config.data_folder / "staging")
        deletions = Deletions(registry, store, client, by=f"frontend-{uuid.uuid4().hex}")
        sweep = Sweep(registry, store, client, staging, deletions)
        base_name = config.engine.served_name
        return cls(
            registrar=Registrar(registry, store, client, staging, checking(desk, templates), base_name=base_name),
            sources=Sources(settings),
            uploads=Uploads(settings.max_adapter_bytes),
            warden=Warden(registry, deletions, Pins(registry, client), sweep),
            max_adapter_bytes=settings.max_adapter_bytes,
            _staging=staging,
        )

    async def run(self) -> Never:
        """Keeps the registry's promises until cancelled."""
        try:
            await self.warden.run()
        finally:
            await asyncio.to_thread(self._staging.close)
