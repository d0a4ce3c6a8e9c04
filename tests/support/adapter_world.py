"""A registry in a file, a store in a folder, and adapters whose bytes do not matter."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from echo_cluster import EchoCluster
from punica_frontend.adapters.addresses import Address
from punica_frontend.adapters.deletions import Deletions
from punica_frontend.adapters.garbage_collector import AdapterGarbageCollector
from punica_frontend.adapters.pins import Pins
from punica_frontend.adapters.registration import Fetch, Registrar
from punica_frontend.adapters.staging import Staging
from punica_serve.protocol import AdapterRef
from punica_serve.registry.registry import Registry
from punica_serve.store.adapter_store import AdapterStore
from punica_serve.store.validator import ValidatedAdapter

#: ``bringing``.
Bringing = Callable[[str], Fetch]


@dataclass
class World:
    """All that the life of an adapter goes through, over a cluster in memory."""

    registry: Registry
    store: AdapterStore
    staging: Staging
    registrar: Registrar
    deletions: Deletions
    pins: Pins
    collector: AdapterGarbageCollector
    cluster: EchoCluster
    folder: Path

    def stored(self) -> set[str]:
        return {path.name for path in (self.folder / "store").iterdir()}


async def check(folder: Path, _address: Address) -> ValidatedAdapter:
    """Any two files are an adapter."""
    config, weights = (folder / name for name in ("adapter_config.json", "adapter_model.safetensors"))
    digest = hashlib.sha256(config.read_bytes() + weights.read_bytes()).hexdigest()
    return ValidatedAdapter(
        AdapterRef(digest, str(folder), 100, {"q_proj": 8}), base_model="numbers", chat_template=None
    )


def bringing(content: str) -> Fetch:
    """Different contents are different adapters."""

    async def bring(folder: Path) -> None:
        (folder / "adapter_config.json").write_text("{}")
        (folder / "adapter_model.safetensors").write_text(content)

    return bring
