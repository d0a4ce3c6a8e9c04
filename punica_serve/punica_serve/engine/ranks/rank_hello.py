"""Checks what the ranks of a group must have in common, and names the rank that does not fit."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from punica_serve.base_model.weight_files import weight_files
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.ranks.exchange_choice import choice_of
from punica_serve.engine.ranks.rank_messages import RankHello, group_version
from punica_serve.errors import ConfigError

_GIB = 1 << 30
#: Pieces of a weight file that tell it from another one of its size, from its beginning to its end.
_NUM_SAMPLES, _SAMPLE_BYTES = 5, 1 << 16


def hello_of(config: EngineConfig, device: torch.device, num_ranks: int) -> RankHello:
    """This process's hello in a group of so many ranks. Raises ConfigError for a file of times that can't be read."""
    version = group_version()
    if device.type == "cpu":
        return RankHello(version, model_digest(config), "gloo", "", "cpu", 0)
    gpu = torch.cuda.get_device_properties(device)
    exchange = f"{choice_of(config, gpu.name, num_ranks)}"
    return RankHello(version, model_digest(config), exchange, f"GPU-{gpu.uuid}", gpu.name, gpu.total_memory)


def model_digest(config: EngineConfig) -> str:
    """Identifies the model's files on any host, without reading all of them: config.json, and each weight file's name,
    size and some of its bytes.
    """
    digest = hashlib.sha256((config.model / "config.json").read_bytes())
    files: Sequence[Path] = () if config.load_format == "dummy" else weight_files(config.model)
    for file in files:
        num_bytes = file.stat().st_size
        digest.update(f"{file.name} {num_bytes} ".encode())
        with file.open("rb") as opened:
            for sample in range(_NUM_SAMPLES):
                opened.seek(max(0, num_bytes - _SAMPLE_BYTES) * sample // (_NUM_SAMPLES - 1))
                digest.update(opened.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def check_hellos(hellos: Mapping[str, RankHello]) -> None:
    """Raises ConfigError with the first thing that does not fit. ``hellos``: by rank's name, the leader first."""
    (leader, first), *others = hellos.items()
    by_gpu: dict[str, str] = {}
    for name, hello in hellos.items():
        if hello.gpu_uuid and (other := by_gpu.setdefault(hello.gpu_uuid, name)) != name:
            raise _refusal(f"{other} and {name} are the same GPU ({hello.gpu_uuid}); name each GPU once")
    for name, hello in others:
        if hello.version != first.version:
            raise _refusal(f"{name} runs version {hello.version}, {leader} {first.version}; restart both on one")
        if hello.model != first.model:
            raise _refusal(f"{name} reads other model files than {leader}; give all ranks the same `engine.model`")
        if _gpu(hello) != _gpu(first):
            raise _refusal(f"{leader} is {_gpu(first)} and {name} is {_gpu(hello)}; group equal devices")
        if hello.exchange != first.exchange:
            ways = f"{leader} adds up by {first.exchange}, {name} by {hello.exchange}"
            raise _refusal(f"{ways}; give all ranks the same `engine.exchange_times`")


def _gpu(hello: RankHello) -> str:
    """The kind of device, in words that differ where the difference matters."""
    memory = f" with {hello.device_bytes / _GIB:.0f} GiB" if hello.device_bytes else ""
    return f"a {hello.device_name}{memory}"


def _refusal(words: str) -> ConfigError:
    return ConfigError(f"the ranks do not fit together: {words}", param="runner.devices")
