"""The LoRA of one step: which rows use which pages, per group, and the operator call that every layer makes."""

import torch
from torch import Tensor

from punica_kernels.segments import SegmentIndex
from punica_kernels.sgmv import add_lora
from punica_serve.engine.adapter_loader import AdapterLoader
from punica_serve.engine.batch import Segments
from punica_serve.engine.lora_pool import LoraPool
from punica_serve.lora_layout import LORA_PAGE_RANKS
from punica_serve.protocol import LoraGroup


class PooledLora:
    """LoRA weights from the pool's pages. ``plan`` once per step, ``add`` in every layer."""

    def __init__(self, pool: LoraPool) -> None:
        self._pool = pool
        self._indices: dict[LoraGroup, SegmentIndex] = {}
        self._buffers: dict[LoraGroup, Tensor] = {}

    def plan(self, segments: Segments, loader: AdapterLoader) -> None:
        """Groups that no adapter of the batch touches are left out, so base-only batches run no LoRA at all."""
        self._indices.clear()
        self._buffers.clear()
        owned = [loader.pages(digest) if digest else {} for digest in segments.digests]
        for group, pool in self._pool.groups.items():
            pages = [own.get(group, []) for own in owned]
            if not any(pages):
                continue
            index = SegmentIndex.build(segments.indptr, pages, device=pool.a.device)
            shape = (segments.indptr[-1], pool.a.shape[2], index.max_pages * LORA_PAGE_RANKS)
            self._indices[group] = index
            self._buffers[group] = torch.empty(shape, dtype=torch.float32, device=pool.a.device)

    def add(self, layer: int, group: LoraGroup, y: Tensor, x: Tensor) -> None:
        """y [rows, out of all slices] += LoRA of each row on x [rows, in], in place."""
        index = self._indices.get(group)
        if index is not None:
            pool = self._pool.groups[group]
            add_lora(y, x, pool.a[:, layer], pool.b[:, layer], pool.out_offsets, index, self._buffers[group])
