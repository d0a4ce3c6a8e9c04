"""GET /info: what is served, and its limits."""

import msgspec

from punica_frontend.choices import MAX_CHOICES
from punica_frontend.schemas import MAX_STOPS
from punica_serve.config import EngineConfig
from punica_serve.model_config import ModelConfig
from punica_serve.version import __version__


class Info(msgspec.Struct, frozen=True):
    """In LoRAX's and TGI's words."""

    #: The base model's name.
    model_id: str
    model_dtype: str
    max_input_length: int
    #: Of input and answer.
    max_total_tokens: int
    max_best_of: int = MAX_CHOICES
    max_stop_sequences: int = MAX_STOPS
    model_pipeline_tag: str = "text-generation"
    version: str = __version__
    router: str = "punica-serve"
    model_sha: None = None
    sha: None = None
    docker_label: None = None


def tgi_info(model: ModelConfig, engine: EngineConfig) -> Info:
    max_context = engine.context_of(model)
    return Info(engine.served_name, f"torch.{engine.dtype_of(model)}", max_context - 1, max_context)
