"""Chooses the attention kernels of a GPU: FlashInfer's where it has some for the model, else our own."""

from collections.abc import Mapping

import torch

from punica_serve.engine.kv_cache import KvCache
from punica_serve.engine.step_program import PlannedAttention
from punica_serve.engine.step_shape import StepShape
from punica_serve.engine.step_words import StepWords
from punica_serve.engine.triton_attention import TritonPagedAttention
from punica_serve.model_config import ModelConfig

_FLASHINFER_DTYPES = (torch.bfloat16, torch.float16)
_FLASHINFER_HEAD_DIMS = (64, 128, 256)


def make_attentions(
    cache: KvCache, model: ModelConfig, words: Mapping[StepShape, StepWords]
) -> dict[StepShape, PlannedAttention]:
    """One attention for each shape of an engine, in its words. They share memory and must run one after the other."""
    if _has_flashinfer(cache, model):
        return _make_flashinfer(cache, model, words)
    return _make_triton(cache, model, words)


def attention_parts(cache: KvCache, model: ModelConfig, shape: StepShape) -> dict[str, int]:
    """The words that attention takes for a step of this shape. They must be the last: not all of them are copied."""
    if _has_flashinfer(cache, model):
        from punica_serve.engine.flashinfer_attention import FlashInferAttention

        return FlashInferAttention.parts(cache, model, shape)
    return TritonPagedAttention.parts(cache, model, shape)


def _has_flashinfer(cache: KvCache, model: ModelConfig) -> bool:
    return cache.pool.dtype in _FLASHINFER_DTYPES and model.head_dim in _FLASHINFER_HEAD_DIMS


def _make_flashinfer(
    cache: KvCache, model: ModelConfig, words: Mapping[StepShape, StepWords]
) -> dict[StepShape, PlannedAttention]:
    from punica_serve.engine.flashinfer_attention import FlashInferAttention, FlashInferWorkspace

    max_rows = max(shape.num_rows for shape in words)
    max_decodes = max(shape.num_decode_rows for shape in words)
    workspace = FlashInferWorkspace(cache, model, max_rows=max_rows, max_decodes=max_decodes)
    return {shape: FlashInferAttention(cache, model, shape, own, workspace) for shape, own in words.items()}


def _make_triton(
    cache: KvCache, model: ModelConfig, words: Mapping[StepShape, StepWords]
) -> dict[StepShape, PlannedAttention]:
    return {shape: TritonPagedAttention(cache, model, shape, own) for shape, own in words.items()}
