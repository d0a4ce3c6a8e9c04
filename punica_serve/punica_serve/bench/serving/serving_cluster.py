"""A cluster to measure: a config, or a shape with random weights, with the dummy adapters that the workloads need."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from punica_serve.base_model.lora_layout import pages_of_rank
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.bench.running_cluster import RunningCluster, running_cluster
from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.dummy_adapters_section import DummyAdaptersConfig
from punica_serve.engine.adapters.packing import packed_num_bytes
from punica_serve.engine.memory.byte_arena import arena_num_bytes

#: Adapters on the GPU beyond those of a batch, so that there is room for loads.
_MIN_SPARE_ADAPTERS = 32


def with_dummies(
    config: ClusterConfig, model: ModelConfig, *, num_adapters: int, rank: int, batch_size: int | None
) -> ClusterConfig:
    """The config with so many dummy adapters, room for them in host memory, and for a batch of them on the device."""
    dummies = DummyAdaptersConfig(count=num_adapters, rank=(rank,))
    engine = config.engine
    batch = batch_size or engine.max_batch_size
    pages = pages_of_rank(rank) * min(num_adapters, batch + max(_MIN_SPARE_ADAPTERS, batch // 4))
    dtype: torch.dtype = getattr(torch, engine.dtype_of(model))
    num_bytes = packed_num_bytes(dict.fromkeys(model.linear_shapes, rank), model, dtype)
    update = {
        "max_batch_size": batch,
        "num_lora_pages": max(pages, engine.lora_pages),
        "host_cache_bytes": max(arena_num_bytes(num_adapters, num_bytes), engine.host_cache_bytes or 0),
        "compile_flashinfer": False,  # nothing runs beside what is measured
    }
    return config.model_copy(update={"engine": engine.model_copy(update=update), "dummy_adapters": dummies})


@contextmanager
def serving_cluster(config: ClusterConfig, model: ModelConfig, folder: Path) -> Iterator[RunningCluster]:
    """Runs a cluster in a folder, with a tokenizer if the model has none. Raises ConfigError and ClusterUnavailable."""
    if not (config.engine.tokenizer_folder / "tokenizer.json").exists():
        tokenizer = write_tokenizer(folder / "tokenizer", model.vocab_size)
        config = config.model_copy(update={"engine": config.engine.model_copy(update={"tokenizer": tokenizer})})
    with running_cluster(config, folder) as cluster:
        yield cluster


def write_tokenizer(folder: Path, vocab_size: int) -> Path:
    """Writes a tokenizer for random weights, in which every token id is a word of its own, so that each has a text."""
    folder.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(vocab_size)}, "unk_token": "w0"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    return folder
