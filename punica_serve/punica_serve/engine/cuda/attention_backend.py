"""Which prefill rows FlashInfer serves, and which our own kernel: `engine.attention`.

``auto`` takes FlashInfer from the number of rows on from which it measured faster on such layers
(attention_times.yaml, written from `punica-serve bench kernels --only paged-attention`), if its kernels are
compiled. Otherwise ours serve, the log says why, and the kernels are compiled for the next start.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import torch
import yaml

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import AttentionBackend
from punica_serve.engine.cuda.flashinfer_compiler import FlashInferCompiler
from punica_serve.engine.cuda.flashinfer_modules import Fa3Module, compile_module, is_compiled, why_not
from punica_serve.errors import ConfigError

#: FlashInfer is taken where our kernel needs this many times its time, or more.
_MIN_GAIN = 1.02

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AttentionTime:
    """One measured prefill: µs a layer."""

    new_tokens: int
    context: int
    #: Query heads that share one head of keys and values.
    group: int
    triton_us: float
    flashinfer_us: float


@cache
def measured_times() -> tuple[AttentionTime, ...]:
    """The table that is shipped, for Hopper."""
    text = files(__package__).joinpath("attention_times.yaml").read_text(encoding="utf-8")
    return tuple(AttentionTime(**row) for row in yaml.safe_load(text)["times"])


def flashinfer_from(times: Iterable[AttentionTime], group: int) -> int | None:
    """The fewest rows of a launch from which on FlashInfer is the faster one at every measured size; None at none.

    Layers are compared with those of the nearest measured ``group``, over all measured contexts together.
    """
    rows = sorted(times, key=lambda time: abs(time.group - group))
    ours: dict[int, float] = defaultdict(float)
    theirs: dict[int, float] = defaultdict(float)
    for time in (time for time in rows if time.group == rows[0].group):
        ours[time.new_tokens] += time.triton_us
        theirs[time.new_tokens] += time.flashinfer_us
    first = None
    for new_tokens in sorted(ours, reverse=True):
        if ours[new_tokens] < _MIN_GAIN * theirs[new_tokens]:
            break
        first = new_tokens
    return first


def flashinfer_rows(
    backend: AttentionBackend,
    model: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    opened: ExitStack,
    num_prefills: int = 1,
) -> int | None:
    """The fewest prefill rows of a GPU's bucket that FlashInfer serves; None leaves all to our kernel.

    ``opened``: closing it ends what is compiled for the next start. ``num_prefills``: the most of one step. ``auto``
    leaves several to our kernel: FlashInfer's were not checked there.

    Raises ConfigError if ``backend`` insists on FlashInfer and it can't serve this model here.
    """
    if backend == "triton":
        return None
    modules = fa3_modules(model, dtype)
    reason = next(filter(None, (why_not(module, device) for module in modules)), None)
    if backend == "flashinfer":
        if reason := reason or _why_not_compiled(modules):
            raise ConfigError(f"`engine.attention` is flashinfer, but {reason}; take auto", param="engine.attention")
        return 1
    if num_prefills > 1:
        reason = f"`engine.max_prefills` is {num_prefills}, and FlashInfer was not checked with more than one"
    first = flashinfer_from(measured_times(), model.num_attention_heads // model.num_key_value_heads)
    missing = [] if reason else [module for module in modules if not is_compiled(module)]
    if first is not None and missing:
        reason = "FlashInfer's kernels are not compiled yet; they are being compiled for the next start"
        opened.callback(FlashInferCompiler(module.job for module in missing).close)
    if reason or first is None:
        logger.info("attention: Triton for all rows: %s", reason or "FlashInfer is nowhere faster")
        return None
    logger.info("attention: FlashInfer for prefills of %d rows or more, Triton for the rest", first)
    return first


def fa3_modules(model: ModelConfig, dtype: torch.dtype) -> list[Fa3Module]:
    """The kernels that a model's layers need, one for each distinct window."""
    cap = model.spec.attention_soft_cap or 0.0
    return [Fa3Module(dtype, model.head_dim, window, cap) for window in model.spec.windows]


def _why_not_compiled(modules: Sequence[Fa3Module]) -> str | None:
    """Compiles what is not compiled yet. Returns why that can't be done; None if it could."""
    for module in modules:
        if not is_compiled(module):
            logger.info("compiling FlashInfer's kernels for heads of %d, once: a minute or more", module.head_dim)
            try:
                compile_module(module)
            except RuntimeError as error:
                return str(error)
    return None
