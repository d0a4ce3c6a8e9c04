"""Files for measuring vLLM with the same model and adapters, and the command that starts it."""

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


def write_peer_files(
    folder: Path, engine: EngineConfig, model: ModelConfig, *, num_adapters: int, rank: int, progress: Progress
) -> Path:
    """Writes the model's config, a tokenizer, the adapters and ``vllm.sh`` into a folder. Returns the script.

    Raises ConfigError if they can't be written.
    """
    task = progress.add_task("writing adapters", total=num_adapters)
    adapters = folder / "adapters"
    write_folders(adapters, model, num_adapters, rank, torch.device("cpu"), lambda: progress.advance(task))
    served = write_tokenizer(folder / "model", model.vocab_size)
    (served / "config.json").write_bytes((engine.model / "config.json").read_bytes())
    script = folder / "vllm.sh"
    script.write_text(vllm_script(folder.resolve(), engine, num_adapters=num_adapters, rank=rank), encoding="utf-8")
    return script


def vllm_script(folder: Path, engine: EngineConfig, *, num_adapters: int, rank: int) -> str:
    """The command that serves the files in a folder with vLLM."""
    command = ["vllm", "serve", str(folder / "model"), "--served-model-name", engine.served_name]
    command += ["--load-format", "dummy", "--dtype", "bfloat16", "--max-num-seqs", str(engine.max_batch_size)]
    command += ["--no-enable-prefix-caching"]
    if num_adapters:
        command += ["--enable-lora", "--max-lora-rank", str(rank)]
        command += ["--max-loras", str(min(num_adapters, _MAX_LORAS)), "--max-cpu-loras", str(num_adapters)]
        names = (f"{dummy_name(number)}={folder / 'adapters' / str(number)}" for number in range(num_adapters))
        command += ["--lora-modules", *names]
    return f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n'
