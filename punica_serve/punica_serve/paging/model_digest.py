"""The identity of a base model as it is served: keys and values of another one must never be found."""

from hashlib import sha256

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.base_model.weight_files import weight_files
from punica_serve.config.engine_section import EngineConfig
from punica_serve.protocol import PrefixCaching


def prefix_caching_of(config: EngineConfig, model: ModelConfig) -> PrefixCaching | None:
    """How an engine of this config shares pages; None if it does not."""
    return PrefixCaching(_model_digest(config, model), config.prefix_scope) if config.prefix_caching else None


def _model_digest(config: EngineConfig, model: ModelConfig) -> str:
    """The digest of the model's config, its data type and its weights.

    A process serves one model, and its pages end with it, so names and sizes of the weight files are enough.
    """
    digest = sha256(f"{model!r} {config.dtype_of(model)} {config.load_format}".encode())
    if config.load_format == "safetensors":
        for file in weight_files(config.model):
            digest.update(f" {file.name} {file.stat().st_size}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
