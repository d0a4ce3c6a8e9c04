"""The parts of one rank of an engine on its device: a model or its share of one, and the memory of its steps."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.config.fields import AUTO_BATCH
from punica_serve.engine.adapters.lora_pool import LoraPool, make_lora_pool
from punica_serve.engine.batching.kv_cache import KvCache, make_kv_cache
from punica_serve.engine.memory.device_memory import open_device
from punica_serve.engine.model_loader import load_base_weights, model_of
from punica_serve.engine.ranks.exchange_start import exchanges_of
from punica_serve.engine.ranks.joining import Joining
from punica_serve.engine.sampler import Sampler
from punica_serve.errors import ConfigError
from punica_serve.models.collectives import Collectives
from punica_serve.models.model import Model
from punica_serve.process.start_clock import StartClock

#: From a value of this rank, by its name, to the one that all ranks of a group take.
Agree = Callable[[str, int], int]


@dataclass(frozen=True, slots=True)
class EngineParts:
    """Made in one order on all ranks of a group, since they wait for each other."""

    device: torch.device
    #: This rank's share of the model.
    share: ModelConfig
    dtype: torch.dtype
    model: Model
    lora_pool: LoraPool
    sampler: Sampler
    cache: KvCache
    collectives: Collectives

    @classmethod
    def make(
        cls,
        config: EngineConfig,
        device: torch.device,
        joining: Joining,
        agree: Agree,
        opened: ExitStack,
        clock: StartClock,
    ) -> "EngineParts":
        """``opened``: is closed with the engine, and ends what is compiled for the next start.

        Raises ModelRejected if the model can't be served, ConfigError if the settings can't work on the device.
        """
        if config.max_batch_size == AUTO_BATCH:
            message = "`engine.max_batch_size: auto` is for clusters, which know how long steps take; give a number"
            raise ConfigError(message, param="engine.max_batch_size")
        model = read_model_config(config.model)
        dtype: torch.dtype = getattr(torch, config.dtype_of(model))
        config.context_of(model)
        share = config.share_of(model, joining.rank)
        with clock.phase("weights"):
            weights = load_base_weights(config, share, dtype, device, clock.at)
        with clock.phase("joining", together=True):
            joined = joining.wait(clock.at)
        with clock.phase("exchanges", together=True):
            collectives = exchanges_of(joined, config, share, dtype, device, opened)
        loaded = model_of(share, weights, collectives)
        with clock.phase("pools"):
            lora_pool = make_lora_pool(config, share, dtype, device, lambda num_pages: agree("LoRA pool", num_pages))
            sampler = Sampler(
                model.vocab_size,
                model.generation.eos_token_ids,
                # Rows beside prefills are padded to all requests but one.
                max_rows=config.max_batch_size + config.num_prefills - 1,
                device=device,
                collectives=collectives,
            )
            cache = make_kv_cache(config, share, dtype, device, lambda num_pages: agree("KvCache", num_pages))
        return cls(device, share, dtype, loaded, lora_pool, sampler, cache, collectives)


def alone(name: str, value: int) -> int:
    """The agreement of a device without a group."""
    return value


def open_engine_device(config: EngineConfig, name: str) -> torch.device:
    """Opens a device, in a process that serves one engine. Raises ConfigError, also for settings that it can't keep."""
    config.check_device(name)
    if config.cpu_threads is not None:
        torch.set_num_threads(config.cpu_threads)
    return open_device(name)
