"""What a frontend is made of. ``main`` puts it together, ``app`` lays routes over it."""

from dataclasses import dataclass

from punica_frontend.adapters.lifecycle import Lifecycle
from punica_frontend.admission import Admission
from punica_frontend.metrics.figures import Figures
from punica_frontend.scheduler_client import SchedulerClient
from punica_frontend.templates import TemplateRenderer
from punica_frontend.tenancy.door import Door
from punica_frontend.tenancy.meter import Meter
from punica_frontend.tenancy.sessions import Sessions
from punica_serve.config import ClusterConfig
from punica_serve.model_config import ModelConfig
from punica_serve.registry.registry import Registry
from punica_serve.text.tokenizer import Tokenizer
from punica_serve.tracing import SpanSink


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Each has its owner elsewhere; here is only who there is."""

    config: ClusterConfig
    model: ModelConfig
    tokenizer: Tokenizer
    templates: TemplateRenderer
    client: SchedulerClient
    registry: Registry
    adapters: Lifecycle
    admission: Admission
    figures: Figures
    meter: Meter
    sessions: Sessions
    door: Door
    #: Of traces; None: there are none.
    sink: SpanSink | None = None
