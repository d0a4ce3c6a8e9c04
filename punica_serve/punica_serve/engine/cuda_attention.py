"""Chooses the attention kernels of a GPU: FlashInfer's where it has some for the model, else our own."""

from collections.abc import Iterable

import torch

from punica_serve.engine.kv_cache import KvCache
from punica_serve.engine.step_program import PlannedAttention
from punica_serve.engine.step_shape import StepShape
from punica_serve.model_config import ModelConfig

_FLASHINFER_DTYPES = (torch.bfloat16, torch.float16)
_FLASHINFER_HEAD_DIMS = (64, 128, 256)


def make_attentions(
    cache: KvCache, model: ModelConfig, shapes: Iterable[StepShape]
) -> dict[StepShape, PlannedAttention]:
    """One attention for each shape of an engine. They share memory and must run on one stream."""
    if cache.pool.dtype in _FLASHINFER_DTYPES and model.head_dim in _FLASHINFER_HEAD_DIMS:
        return _make_flashinfer(cache, model, tuple(shapes))
    return _make_triton(cache, model, shapes)


def _make_flashinfer(
    cache: KvCache, model: ModelConfig, shapes: tuple[StepShape, ...]
) -> dict[StepShape, PlannedAttention]:
    from punica_serve.engine.flashinfer_attention import FlashInferAttention, FlashInferWorkspace

    max_rows = max(shape.num_rows for shape in shapes)
    max_decodes = max(shape.num_decode_rows for shape in shapes)
    workspace = FlashInferWorkspace(cache, model, max_rows=max_rows, max_decodes=max_decodes)
    return {shape: FlashInferAttention(cache, model, shape, workspace) for shape in shapes}


def _make_triton(cache: KvCache, model: ModelConfig, shapes: Iterable[StepShape]) -> dict[StepShape, PlannedAttention]:
    from punica_serve.engine.triton_attention import TritonPagedAttention

    return {shape: TritonPagedAttention(cache, model, shape) for shape in shapes}
