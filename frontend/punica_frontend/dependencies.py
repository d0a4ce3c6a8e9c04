"""The objects that make up a frontend. ``main`` creates them; ``app`` builds the routes on them."""

from dataclasses import dataclass

from punica_frontend.adapters.lifecycle import Lifecycle
from punica_frontend.generation.admission import Admission
from punica_frontend.generation.templates import TemplateRenderer
from punica_frontend.metrics.metrics import Metrics
from punica_frontend.scheduler_link.scheduler_client import SchedulerClient
from punica_frontend.tenancy.authenticator import Authenticator
from punica_frontend.tenancy.meter import Meter
from punica_frontend.tenancy.sessions import Sessions
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.cluster import ClusterConfig
from punica_serve.process.tracing import SpanSink
from punica_serve.registry.registry import Registry
from punica_serve.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class AppDependencies:
    """References only: each object is owned and closed elsewhere."""

    config: ClusterConfig
    model: ModelConfig
    tokenizer: Tokenizer
    templates: TemplateRenderer
    client: SchedulerClient
    registry: Registry
    adapters: Lifecycle
    admission: Admission
    metrics: Metrics
    meter: Meter
    sessions: Sessions
    authenticator: Authenticator
    #: Exports traces; None when tracing is off.
    sink: SpanSink | None = None
