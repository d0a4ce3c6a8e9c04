"""Creates everything that the life of adapters needs."""

import asyncio
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Never, Self

from punica_frontend.adapters.addresses import Address
from punica_frontend.adapters.deletions import Deletions
from punica_frontend.adapters.garbage_collector import AdapterGarbageCollector
from punica_frontend.adapters.pins import Pins
from punica_frontend.adapters.reconciler import AdapterReconciler
from punica_frontend.adapters.registration import CHECKS, Check, Registrar
from punica_frontend.adapters.staging import Staging
from punica_frontend.generation.templates import TemplateRenderer
from punica_frontend.scheduler_link.scheduler_client import SchedulerClient
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.cluster import ClusterConfig
from punica_serve.registry.names import full_name
from punica_serve.registry.registry import Registry
from punica_serve.store.adapter_store import AdapterStore
from punica_serve.store.sources import Sources
from punica_serve.store.upload import Uploads
from punica_serve.store.validator import AdapterValidator, ValidatedAdapter

#: For reading and checking all weights of an adapter.
_CHECK_TIMEOUT_S = 120.0


def validation(validator: AdapterValidator, templates: TemplateRenderer) -> Check:
    """Returns the complete check of an adapter: its files, and, in a separate process, its chat template."""

    async def check(folder: Path, address: Address) -> ValidatedAdapter:
        validated = await validator.check(folder, full_name(address.tenant, address.name))
        if validated.chat_template is not None:
            await templates.check(validated.chat_template, address.tenant_id)
        return validated

    return check


@dataclass(frozen=True, kw_only=True)
class Lifecycle:
    """The objects that routes use, and the background task."""

    registrar: Registrar
    sources: Sources
    uploads: Uploads
    reconciler: AdapterReconciler
    #: The largest weights of one adapter.
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
        """Creates all objects. Does no input or output. Raises ConfigError for an invalid store URL."""
        settings = config.store
        store = AdapterStore(
            config.store_url,
            settings.options,
            timeout_s=settings.timeout_s,
            transfer_timeout_s=settings.transfer_timeout_s,
        )
        validator = AdapterValidator(
            model,
            strict_base=config.strict_base,
            num_lora_pages=config.engine.lora_pages,
            limits=config.engine.lora_limits,
            max_adapter_bytes=settings.max_adapter_bytes,
            num_threads=CHECKS.num_slots,
            timeout_s=_CHECK_TIMEOUT_S,
        )
        staging = Staging(config.data_folder / "staging")
        deletions = Deletions(registry, store, client, by=f"frontend-{uuid.uuid4().hex}")
        collector = AdapterGarbageCollector(registry, store, client, staging, deletions)
        base_name = config.engine.served_name
        return cls(
            registrar=Registrar(
                registry, store, client, staging, validation(validator, templates), base_name=base_name
            ),
            sources=Sources(settings, validator.check_config),
            uploads=Uploads(settings.max_adapter_bytes),
            reconciler=AdapterReconciler(registry, deletions, Pins(registry, client), collector),
            max_adapter_bytes=settings.max_adapter_bytes,
            _staging=staging,
        )

    async def run(self) -> Never:
        """Runs the reconciler until cancelled."""
        try:
            await self.reconciler.run()
        finally:
            await asyncio.to_thread(self._staging.close)
