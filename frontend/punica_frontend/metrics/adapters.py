"""The residency of the most used adapters, by which gateways that know vLLM route requests."""

from collections.abc import Iterator
from dataclasses import dataclass

from punica_frontend.metrics import catalogue
from punica_frontend.metrics.metrics import Metrics
from punica_frontend.metrics.text import family, joined, labelled
from punica_serve.protocol import AdapterResidency, ClusterSnapshot


@dataclass(frozen=True, slots=True)
class NamedAdapter:
    """An adapter with its own label, and its residency; None if it is unknown or nowhere."""

    full_name: str
    is_pinned: bool
    residency: AdapterResidency | None


def adapter_lines(
    metrics: Metrics, adapters: list[NamedAdapter], cluster: ClusterSnapshot, model: str, now_s: float
) -> Iterator[str]:
    of_model = labelled(model_name=model)
    on_gpus = [adapter for adapter in adapters if adapter.residency and adapter.residency.gpus]
    waiting = [adapter for adapter in adapters if metrics.waiting_adapters[adapter.full_name]]
    info = labelled(
        max_lora=str(sum(gpu.gpu.max_batch_size for gpu in cluster.gpus)),
        running_lora_adapters=",".join(adapter.full_name for adapter in on_gpus),
        waiting_lora_adapters=",".join(adapter.full_name for adapter in waiting),
    )
    yield from family(catalogue.LORA_INFO, [(joined(of_model, info), now_s)])
    loaded = [
        joined(of_model, labelled(adapter_name=each.full_name, level=level, pinned=str(each.is_pinned).lower()))
        for each in adapters
        if each.residency
        for level, holders in (("gpu", each.residency.gpus), ("cpu", each.residency.hosts))
        if holders
    ]
    yield from family(catalogue.LORA_LOADED, [(labels, 1) for labels in loaded])
