"""Files for measuring vLLM with the same model and adapters, and the command that starts it."""

import json
import shlex
from pathlib import Path

import torch
from rich.progress import Progress

from punica_serve.adapters.dummy import dummy_name
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.bench.random_adapters import write_folders
from punica_serve.bench.serving.serving_cluster import write_tokenizer
from punica_serve.config.engine_section import EngineConfig

#: Adapters that vLLM keeps on the GPU: more take memory from its KvCache.
_MAX_LORAS = 32
#: Folders of adapters. More names than these share folders, which vLLM loads for each name anew.
_MAX_FOLDERS = 32
#: By default vLLM's CUDA graphs stop at twice the batch, which would leave its prefills without them.
_MAX_GRAPH_TOKENS = 1024
_SCRIPT = "vllm.sh"
#: Keeps transformers from building the tokenizer that belongs to the model's type.
_TOKENIZER = {"tokenizer_class": "PreTrainedTokenizerFast"}


def write_peer_files(
    folder: Path, engine: EngineConfig, model: ModelConfig, *, num_adapters: int, rank: int, progress: Progress
) -> Path:
    """Writes the model's config, a tokenizer, the adapters and two scripts into a folder. Returns the first.

    ``vllm.sh`` serves the adapters, ``vllm-base.sh`` the base model alone. Raises ConfigError if they can't be written.
    """
    num_folders = min(num_adapters, _MAX_FOLDERS)
    task = progress.add_task("writing adapters", total=num_folders)
    adapters = folder / "adapters"
    write_folders(adapters, model, num_folders, rank, torch.device("cpu"), lambda: progress.advance(task))
    served = write_tokenizer(folder / "model", model.vocab_size)
    (served / "tokenizer_config.json").write_text(json.dumps(_TOKENIZER), encoding="utf-8")
    (served / "config.json").write_bytes((engine.model / "config.json").read_bytes())
    for name, count in (("vllm-base.sh", 0), (_SCRIPT, num_adapters)):
        text = vllm_script(folder.resolve(), engine, num_adapters=count, rank=rank)
        (folder / name).write_text(text, encoding="utf-8")
    return folder / _SCRIPT


def vllm_script(folder: Path, engine: EngineConfig, *, num_adapters: int, rank: int) -> str:
    """The command that serves the files in a folder with vLLM."""
    command = ["vllm", "serve", str(folder / "model"), "--served-model-name", engine.served_name]
    command += ["--load-format", "dummy", "--dtype", "bfloat16", "--max-num-seqs", str(engine.max_batch_size)]
    command += ["--max-cudagraph-capture-size", str(_MAX_GRAPH_TOKENS)]
    if num_adapters:
        command += ["--enable-lora", "--max-lora-rank", str(rank)]
        command += ["--max-loras", str(min(num_adapters, _MAX_LORAS)), "--max-cpu-loras", str(num_adapters)]
        folders = (folder / "adapters" / str(number % _MAX_FOLDERS) for number in range(num_adapters))
        command += ["--lora-modules", *(f"{dummy_name(number)}={path}" for number, path in enumerate(folders))]
    return f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n'
