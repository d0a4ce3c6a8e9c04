"""Whether a GPU can launch steps as large as the settings ask for: a kernel's programs are cut from a step's rows."""

from collections.abc import Mapping

from punica_kernels.gpu.launch import MAX_GRID_Y
from punica_kernels.lora_table import LoraTableShape
from punica_serve.counted import counted
from punica_serve.engine.cuda_attention import attention_shapes
from punica_serve.engine.kv_cache import KvCache
from punica_serve.engine.step_shape import StepShape
from punica_serve.errors import ConfigError
from punica_serve.model_config import ModelConfig


def check_launches(cache: KvCache, model: ModelConfig, tables: Mapping[StepShape, LoraTableShape]) -> None:
    """Raises ConfigError about the setting that makes a step too large. ``tables``: LoRA's of each shape."""
    for shape, table in tables.items():
        decodes, prefill = attention_shapes(cache, model, shape)
        if decodes:
            rows = counted(shape.num_decode_rows, "request")
            _check("engine.max_batch_size", rows, decodes.max_spans)
        if prefill:
            rows = counted(shape.num_prefill_rows, "prompt token")
            _check("engine.prefill_budget_tokens", rows, max(prefill.max_spans, table.max_tiles))


def _check(setting: str, rows: str, num_programs: int) -> None:
    if num_programs > MAX_GRID_Y:
        message = (
            f"a step of {rows} takes {num_programs} programs of a kernel, where a GPU launches {MAX_GRID_Y} at most"
        )
        raise ConfigError(f"{message}; lower `{setting}`", param=setting)
