"""The paged KvCache of one device. The page is the outermost dimension, so requests stay separable (Punica, sec. 5)."""

import logging
import math
from collections.abc import Callable

import torch
from torch import Tensor

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.batching_rules import pages_for
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.memory.device_memory import free_bytes, reserving, total_bytes
from punica_serve.errors import ConfigError
from punica_serve.numbers import gib
from punica_serve.paging.kv_window import kv_window_of
from punica_serve.paging.page_rule import PageRule
from punica_serve.paging.prefix_cache import PrefixCache
from punica_serve.paging.shared_pages import SharedPagePool, max_pages_named

#: The default on a CPU, where no setting limits memory.
_NUM_PAGES_ON_CPU = 1024

logger = logging.getLogger(__name__)


class KvCache:
    """``pool``: [pages, layers, 2 (key, value), page_size, kv_heads, head_dim]; ``pages``: who holds them."""

    def __init__(
        self,
        model: ModelConfig,
        *,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        is_sharing: bool = False,
    ) -> None:
        """``is_sharing``: requests may have prefix hashes, and so hold pages together."""
        self.page_size = page_size
        shape = (num_pages, *_page_shape(model, page_size))
        # No kernel reads past a context; zeros are a second line of defence against an earlier owner's NaN.
        self.pool = torch.zeros(shape, dtype=dtype, device=device)
        self.pages = SharedPagePool(num_pages)
        #: As `PageRule` has it.
        self.window = model.spec.page_window
        self.prefixes = PrefixCache(self.pages, page_size, self.window)
        #: The most pages that the requests of a step hold together, shared ones counted for each.
        self.max_pages_named = max_pages_named(num_pages, is_sharing=is_sharing)

    def allocate(self, num_pages: int) -> list[int]:
        """Allocates pages, which are empty."""
        pages = self.pages.allocate(num_pages)
        self.clear(pages)
        return pages

    def clear(self, pages: list[int]) -> None:
        """Zeroes pages on a CPU, since torch's attention can't mask an earlier owner's NaN in entries not yet written.

        A GPU's kernels read no such entries, so nothing is done on the device.
        """
        if self.pool.device.type == "cpu":
            self.pool.index_fill_(0, torch.tensor(pages, dtype=torch.int64), 0)

    def pages_for(self, num_tokens: int) -> int:
        return pages_for(num_tokens, self.page_size)

    def layer(self, number: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer: strided views [pages, page_size, kv_heads, head_dim]."""
        return self.pool[:, number, 0], self.pool[:, number, 1]


def make_kv_cache(
    config: EngineConfig,
    model: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    agree: Callable[[int], int] = lambda num_pages: num_pages,
) -> KvCache:
    """The KvCache of the config, to be made last: it may take all memory that is left.

    ``agree``: the number of pages that all ranks of a group will have, from the number that this one could have.
    Raises ConfigError if it does not fit, or if what fits would not hold one request of the longest context.
    """
    page_bytes = math.prod(_page_shape(model, config.page_size)) * dtype.itemsize
    num_pages = agree(config.num_kv_pages or _num_pages_that_fit(config, model, page_bytes, device))
    is_given = config.num_kv_pages is not None or device.type == "cpu"
    with reserving(
        f"`engine.num_kv_pages` of {num_pages}",
        num_pages * page_bytes,
        device,
        fix="lower it" if is_given else "lower `engine.device_memory_share`",
        param="engine.num_kv_pages",
        count=num_pages if is_given else None,
    ):
        cache = KvCache(
            model,
            num_pages=num_pages,
            page_size=config.page_size,
            dtype=dtype,
            device=device,
            is_sharing=config.prefix_caching,
        )
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the pool is cleared for steps on any stream
    logger.info(
        "KvCache on %s: %d pages, %d tokens, %s",
        device,
        num_pages,
        num_pages * config.page_size,
        gib(cache.pool.nbytes),
    )
    return cache


def pages_within(*, free_bytes: int, total_bytes: int, share: float, page_bytes: int) -> int:
    """Pages that keep all use of a device within a share of its memory; may be negative."""
    used_bytes = total_bytes - free_bytes
    return (int(share * total_bytes) - used_bytes) // page_bytes


def _num_pages_that_fit(config: EngineConfig, model: ModelConfig, page_bytes: int, device: torch.device) -> int:
    if device.type == "cpu":
        return _NUM_PAGES_ON_CPU
    free, total, share = free_bytes(device), total_bytes(device), config.device_memory_share
    num_pages = pages_within(free_bytes=free, total_bytes=total, share=share, page_bytes=page_bytes)
    context = config.context_of(model)
    wanted = PageRule.of(config.page_size, kv_window_of(config, model)).held_by(context)
    if num_pages < wanted:
        fits = max(num_pages, 0) * config.page_size
        raise ConfigError(
            f"the KvCache of one request of {context} tokens takes {gib(wanted * page_bytes)}; {device} has {gib(free)}"
            f" of {gib(total)} free, of which `engine.device_memory_share` of {share} leaves"
            f" {gib(max(num_pages, 0) * page_bytes)}; lower {f'`engine.max_context` to {fits} or ' if fits else ''}"
            "`engine.num_lora_pages`, or raise `engine.device_memory_share`",
            param="engine.max_context",
        )
    return num_pages


def _page_shape(model: ModelConfig, page_size: int) -> tuple[int, ...]:
    return (model.num_hidden_layers, 2, page_size, model.num_key_value_heads, model.head_dim)
