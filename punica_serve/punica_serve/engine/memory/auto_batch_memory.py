"""The batch of `engine.max_batch_size: auto` within the memory of a worker's GPUs."""

from collections.abc import Sequence

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.memory.batch_fit import largest_within
from punica_serve.engine.memory.device_memory import open_device, total_bytes


def largest_that_fits(config: EngineConfig, devices: Sequence[str]) -> int:
    """The largest of `auto`'s sizes up to the config's `max_batch_size` whose pools fit; the smallest if none does.

    ``devices`` serve one copy of the model. Only the memory of the first is looked at: the ranks of a group are equal,
    or refused later, and a process that opens another rank's GPU takes memory there for good. Raises ConfigError for a
    device that can't be used.
    """
    device = open_device(devices[0])
    return largest_within(config, len(devices), total_bytes(device)) if device.type == "cuda" else config.max_batch_size
