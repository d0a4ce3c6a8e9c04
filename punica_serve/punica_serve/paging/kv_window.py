"""The window behind which a worker's engine gives pages back, as the worker tells the scheduler."""

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.protocol import KvWindow


def kv_window_of(config: EngineConfig, model: ModelConfig) -> KvWindow | None:
    """The window behind which an engine of this config gives pages back; None if it keeps them."""
    window = model.spec.page_window
    return None if window is None else KvWindow(window, config.prefill_budget_tokens)
