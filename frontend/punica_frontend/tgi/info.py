"""GET /info: the served model and its limits."""

import msgspec

from punica_frontend.api.schemas import MAX_STOPS
from punica_frontend.generation.choices import MAX_CHOICES
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.version import __version__


class Info(msgspec.Struct, frozen=True):
    """The served model in LoRAX's and TGI's format."""

    #: The base model's name.
    model_id: str
    model_dtype: str
    max_input_length: int
    #: The most tokens of input plus answer.
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
