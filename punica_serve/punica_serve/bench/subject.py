"""The subject of an engine benchmark: a config on a device, with room for the benchmark's adapters."""

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.lora_layout import pages_of_rank
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.base_model.rank import SINGLE, Rank
from punica_serve.bench.lone_rank import stand_in
from punica_serve.config.engine_section import EngineConfig
from punica_serve.config.fields import AUTO_BATCH
from punica_serve.engine.adapters.packing import packed_num_bytes
from punica_serve.engine.engine import Engine
from punica_serve.engine.group_start import devices_of
from punica_serve.engine.memory.byte_arena import arena_num_bytes
from punica_serve.engine.memory.device_memory import open_device
from punica_serve.engine.ranks.group_settings import GroupSettings
from punica_serve.offline.lost_rank import end_if_hung
from punica_serve.process.start_clock import StartClock
from punica_serve.shapes import shape_folder

log = logging.getLogger(__name__)

#: For all ranks to draw a large model's weights.
_READY_TIMEOUT_S = 900.0


#: Used where the config says `auto`.
_PAPERS_BATCH = 32


@dataclass(frozen=True, slots=True)
class Subject:
    """The engine to be measured, on one device or a group of them."""

    config: EngineConfig
    #: The leader's, in a group.
    device: torch.device
    #: The model, or one rank's share of it.
    model: ModelConfig
    #: All devices of a group; None: there is only one.
    group: str | None = None

    @classmethod
    def of(cls, config: EngineConfig, device: str, rank: Rank = SINGLE) -> "Subject":
        """Turns prefix caching off: prompts of benchmarks may be alike, and each has to be computed.

        Nothing is compiled beside what is measured.

        Raises ConfigError if the device can't be used, and ModelRejected if the config's model can't be served.
        """
        config = config.model_copy(update={"prefix_caching": False, "compile_flashinfer": False})
        if config.max_batch_size == AUTO_BATCH:
            config = config.model_copy(update={"max_batch_size": _PAPERS_BATCH})
        return cls(config, open_device(device), config.share_of(read_model_config(config.model), rank))

    @classmethod
    def of_shape(cls, name: str, device: str, rank: Rank = SINGLE) -> "Subject":
        """Random weights of a known shape. Raises ConfigError."""
        return cls.of(cls.shape_config(name), device, rank)

    @staticmethod
    def shape_config(name: str) -> EngineConfig:
        """Random weights of a known shape. Raises ConfigError."""
        return EngineConfig(model=shape_folder(name), load_format="dummy")

    @classmethod
    def of_group(cls, config: EngineConfig, devices: str) -> "Subject":
        """The devices together, with commas between. Raises as ``of``, and ConfigError for a size that can't work."""
        names = devices_of(devices)
        subject = cls.of(config, names[0], Rank(0, len(names)))
        return replace(subject, group=devices) if len(names) > 1 else subject

    def open_engine(self, config: EngineConfig, say: Callable[[str], None] = log.info) -> Engine:
        """An engine with this config: of the group, of the device, or of one rank that is measured by itself.

        ``say`` is told every ten seconds how far its start is.
        """
        clock = StartClock(say=say)
        if self.group is not None:
            others = GroupSettings(ready_timeout_s=_READY_TIMEOUT_S)
            return Engine(config, self.group, others=others, on_loss=end_if_hung, clock=clock)
        return Engine(config, str(self.device), collectives=stand_in(self.model.rank), clock=clock)

    @property
    def title(self) -> str:
        """The model's name, and the size of the group, or the rank if it is measured by itself."""
        rank = self.model.rank
        if self.group is not None:
            return f"{self.model.name}, group of {rank.size}"
        return self.model.name if rank.size == 1 else f"{self.model.name}, rank {rank.index} of {rank.size}"

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.config.dtype_of(self.model))
        return dtype

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def device_bytes(self) -> int:
        """All memory of the GPU."""
        return int(torch.cuda.get_device_properties(self.device).total_memory)

    def free_memory(self) -> None:
        """Frees the device memory of a closed engine: the next one sizes its KvCache by the free memory."""
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()

    def sized(self, *, batch_size: int, rank: int, num_host: int, num_resident: int) -> EngineConfig:
        """The config with room for ``num_host`` adapters in host memory, and ``num_resident`` on the device."""
        pages = pages_of_rank(rank) * num_resident
        ranks = dict.fromkeys(self.model.linear_shapes, rank)
        needed_bytes = arena_num_bytes(num_host, packed_num_bytes(ranks, self.model, self.dtype))
        return self.config.model_copy(
            update={
                "max_batch_size": batch_size,
                "num_lora_pages": max(pages, self.config.lora_pages),
                "host_cache_bytes": max(needed_bytes, self.config.host_cache_bytes or 0),
            }
        )
