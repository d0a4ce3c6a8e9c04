"""Checks at the start that a GPU can launch the largest steps: the grids of kernels grow with a step's rows."""

from collections.abc import Mapping

from punica_kernels.gpu.launch import MAX_GRID_Y
from punica_kernels.lora_table import LoraTableShape
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.cuda.batch_bucket import BatchBucket
from punica_serve.engine.cuda.cuda_attention import DEFAULT_OPTIONS, AttentionOptions, attention_shapes
from punica_serve.errors import ConfigError
from punica_serve.numbers import counted


def check_launches(
    cache: KvCache,
    model: ModelConfig,
    tables: Mapping[BatchBucket, LoraTableShape],
    options: AttentionOptions = DEFAULT_OPTIONS,
) -> None:
    """Raises ConfigError about the setting that makes a step too large. ``tables``: the LoRA table of each bucket."""
    for bucket, table in tables.items():
        decodes, prefill = attention_shapes(cache, model, bucket, options=options)
        if decodes:
            _check("engine.max_batch_size", bucket.num_decode_rows, "request", decodes.max_tiles)
        if prefill:
            num_programs = max(prefill.max_tiles, table.max_tiles)
            _check("engine.prefill_budget_tokens", bucket.num_prefill_rows, "prompt token", num_programs)


def _check(setting: str, num_rows: int, row: str, num_programs: int) -> None:
    if num_programs > MAX_GRID_Y:
        step = f"a step of {counted(num_rows, row)} takes {num_programs} programs of a kernel"
        fits = num_rows * MAX_GRID_Y // num_programs  # about: rows share programs
        message = f"{step}; a GPU launches {MAX_GRID_Y} at most; lower `{setting}` to about {fits}"
        raise ConfigError(message, param=setting)
