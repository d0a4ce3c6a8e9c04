"""The lines of `punica-serve config check` about a model: whether it would be served, and what of it fits a GPU."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from punica_serve.cli.given_model import check_given_model
from punica_serve.cli.room_lines import adapter_lines, batch_line, prefill_line
from punica_serve.errors import ConfigError, ModelFileMissing
from punica_serve.numbers import counted, gib, is_count

if TYPE_CHECKING:
    from punica_serve.base_model.memory_budget import MemoryPlan
    from punica_serve.base_model.model_config import ModelConfig
    from punica_serve.config.engine_section import EngineConfig
    from punica_serve.paging.page_rule import PageRule
    from punica_serve.performance.auto_batch import AutoBatch

#: The memory on their makers' data sheets, in bytes.
GPUS = {"h200": 141 * 10**9, "h100": 80 * 10**9, "a100-80": 80 * 10**9}
#: A request's tokens in the last line.
_USUAL_REQUEST = 2048
#: A folder with these alone is one to plan with, and no download that was interrupted.
_ONLY_CONFIGS = frozenset({"config.json", "generation_config.json"})


def gpu_bytes(name: str) -> int:
    """The memory of a GPU, by name or as a number of bytes. Raises ConfigError, with the names."""
    if is_count(name) and int(name):
        return int(name)
    if name not in GPUS:
        raise ConfigError(f"`--gpu` {name!r} is not known; give {', '.join(GPUS)}, or a number of bytes", param="gpu")
    return GPUS[name]


def engine_for(folder: Path) -> "EngineConfig":
    """The settings of `up --model FOLDER`, which may be a ``demo:`` or ``shape:`` name. Raises ConfigError, also if no
    model is there.
    """
    from punica_serve.config.engine_section import EngineConfig
    from punica_serve.config.fields import folder_at

    try:
        engine = EngineConfig(model=folder_at(folder, Path.cwd()))
    except ValueError as error:
        raise ConfigError(f"model {folder}: {error}", param="model") from error
    check_given_model("model", str(folder), engine.model, takes_shapes=True)
    return engine


def check_model(
    engine: "EngineConfig", gpu: str | None, num_ranks: int = 1, batch: "AutoBatch | None" = None
) -> list[str]:
    """Lines for a reader. ``num_ranks``: GPUs of a group, which divide the model. ``batch``: the engine's, if `auto`.

    Only its configuration is read. Raises ModelRejected if the model can't be served, ConfigError if it does not fit
    the GPU.
    """
    from punica_serve.base_model.config_json import read_model_config
    from punica_serve.base_model.rank import Rank

    model = read_model_config(engine.model)
    lines = list(_served(engine, model))
    if gpu is None:
        return lines
    return [*lines, *_Fit.of(engine, engine.share_of(model, Rank(0, num_ranks)), gpu).lines(batch)]


def _served(engine: "EngineConfig", model: "ModelConfig") -> Iterator[str]:
    from punica_serve.base_model.memory_budget import num_weights

    yield f"{engine.model} would be served: {num_weights(model):,} weights in {engine.dtype_of(model)}"
    if model.sees_images:
        yield "it is served as text: the weights for images are not read, and requests with images are refused"
    yield from limit_lines(engine, model)
    for told in model.generation.not_applied:
        yield f"not implemented: {told}"


def limit_lines(engine: "EngineConfig", model: "ModelConfig") -> Iterator[str]:
    """The adapters that are served, with the settings that let in others."""
    limits = engine.lora_limits
    groups = model.spec.lora_groups if limits.vocabulary else model.spec.groups
    modules = (projection.name for group in groups for projection in group.projections)
    yield f"adapters may have ranks to {limits.max_rank} (`engine.max_lora_rank`) and update {', '.join(modules)}"
    if not limits.vocabulary:
        yield "adapters of embed_tokens and lm_head need `engine.lora_vocabulary: true`"


def check_files(engine: "EngineConfig") -> str | None:
    """Checks weights and tokenizer of a model folder. A line about a folder that has its configuration alone.

    Raises ModelFileMissing, with all that the folder lacks, and ModelRejected for files that are cut short or can't be
    read, and for weights of another model.
    """
    missing = list(_missing(engine))
    if not missing:
        return None
    if os.access(engine.model, os.R_OK) and _ONLY_CONFIGS.issuperset(os.listdir(engine.model)):
        refused = f"no weights and no tokenizer are in {engine.model}, so `up` would refuse it"
        return f"{refused}: only config.json is checked"
    raise ModelFileMissing(f"{engine.model} is not complete, so `up` would refuse it: {'; '.join(missing)}")


def _missing(engine: "EngineConfig") -> Iterator[str]:
    """Names what the folder lacks, each with what to do."""
    from punica_serve.base_model.checkpoint import checked_weights
    from punica_serve.base_model.config_json import read_model_config
    from punica_serve.text.tokenizer import Tokenizer

    try:
        checked_weights(engine.model, read_model_config(engine.model))
    except ModelFileMissing as error:
        yield error.message
    try:
        Tokenizer.from_folder(engine.tokenizer_folder)
    except ModelFileMissing as error:
        yield error.message


@dataclass(frozen=True, slots=True)
class _Fit:
    """A model, or a rank's share of one, on a GPU."""

    engine: "EngineConfig"
    model: "ModelConfig"
    gpu: str
    num_gpu_bytes: int
    plan: "MemoryPlan"

    @classmethod
    def of(cls, engine: "EngineConfig", model: "ModelConfig", gpu: str) -> "_Fit":
        """Raises ConfigError if it does not fit."""
        from punica_serve.engine.memory.step_memory import check_steps, plan_memory

        num_gpu_bytes = gpu_bytes(gpu)
        plan = plan_memory(engine, model, num_gpu_bytes)
        fit = cls(engine, model, gpu, num_gpu_bytes, plan)
        if plan.kv_tokens < engine.page_size:
            raise ConfigError(f"{engine.model} does not fit {gpu}: {fit.sizes()}; {fit.advice()}", param="gpu")
        check_steps(engine, model, gpu, room=fit.room, num_gpu_bytes=num_gpu_bytes)
        return fit

    @property
    def room(self) -> int:
        """Bytes for steps."""
        from punica_serve.engine.memory.step_memory import room_for_steps

        return room_for_steps(self.engine, self.model, self.plan, self.num_gpu_bytes)

    @property
    def num_kv_pages(self) -> int:
        """The KvCache's pages: as many as the config fixes, or as the GPU has room for."""
        return self.engine.num_kv_pages or self.plan.kv_tokens // self.engine.page_size

    def advice(self) -> str:
        """How to make it fit: by a smaller LoRA pool, if the config fixes one, where that is enough."""
        from punica_serve.base_model.lora_layout import pages_of_rank
        from punica_serve.base_model.memory_budget import most_lora_pages

        engine, plan, limits = self.engine, self.plan, self.engine.lora_limits
        room = plan.lora_bytes + plan.kv_bytes - self._kv_bytes(engine.num_kv_pages or 1)
        pages = most_lora_pages(self.model, plan.num_lora_pages, room, engine.value_bytes_of(self.model), limits)
        is_enough = engine.num_lora_pages is not None and pages >= pages_of_rank(limits.max_rank)
        lower = f"lower `engine.num_lora_pages` to {pages} or less, or " if is_enough else ""
        return (
            f"{lower}take a larger GPU, or a larger group: `runner.tensor_parallel`, or `--tensor-parallel` of a folder"
        )

    def sizes(self) -> str:
        share, size = self.engine.device_memory_share, self.model.rank.size
        whose = f"each of {size} ranks: " if size > 1 else ""
        return (
            f"{whose}of {gib(self.num_gpu_bytes)} the engine uses {share:.0%}; the weights take"
            f" {gib(self.plan.weight_bytes)}, the LoRA pool {gib(self.plan.lora_bytes)}"
        )

    def lines(self, batch: "AutoBatch | None") -> Iterator[str]:
        from punica_serve.performance.auto_batch import AutoBatch

        yield f"{self.gpu}: {self.sizes()}, the KvCache {self._cache()}"
        yield batch_line(batch or AutoBatch(self.engine.max_batch_size, "max_batch_size"), is_gpu_known=True)
        yield prefill_line(self.engine)
        yield from adapter_lines(self.engine, self.model, self.plan.num_lora_pages)
        yield from self._contexts()
        yield self._steps()

    def _cache(self) -> str:
        """The KvCache's bytes, and the setting that fixes them."""
        if self.engine.num_kv_pages is None:
            return gib(self.plan.kv_bytes)
        return f"{gib(self._kv_bytes(self.engine.num_kv_pages))}, by `engine.num_kv_pages`"

    def _kv_bytes(self, num_pages: int) -> int:
        from punica_serve.base_model.memory_budget import kv_bytes_per_token

        page_size, value_bytes = self.engine.page_size, self.engine.value_bytes_of(self.model)
        return num_pages * page_size * kv_bytes_per_token(self.model, value_bytes)

    def _contexts(self) -> Iterator[str]:
        """The tokens and the requests that the KvCache holds."""
        from punica_serve.paging.kv_window import kv_window_of
        from punica_serve.paging.page_rule import PageRule

        engine, context, num_pages = self.engine, self.engine.context_of(self.model), self.num_kv_pages
        kv_tokens = self.plan.kv_tokens if engine.num_kv_pages is None else num_pages * engine.page_size
        rule = PageRule.of(engine.page_size, kv_window_of(engine, self.model))
        tokens, longest, num_longest = f"{kv_tokens:,}", rule.longest(num_pages), num_pages // rule.held_by(context)
        if longest < context:
            advice = f"set `engine.max_context` to {longest} or less"
            yield f"tokens of context: {tokens} of the model's {context:,}; {advice}"
        else:
            yield f"tokens of context: {tokens}, {num_longest:,} requests of the longest, {context:,}"
        yield from self._windows(rule)
        if context > _USUAL_REQUEST:
            num_usual = num_pages // rule.held_by(_USUAL_REQUEST)
            yield f"requests of {_USUAL_REQUEST:,} tokens in the KvCache: {num_usual:,}"

    def _steps(self) -> str:
        """The memory of steps, and the largest that it holds."""
        from punica_serve.engine.memory.step_memory import largest_fitting, step_bytes

        def needs(engine: "EngineConfig") -> int:
            return step_bytes(engine, self.model)

        engine, room = self.engine, self.room
        tokens = largest_fitting(engine, "prefill_budget_tokens", needs, room)
        requests = largest_fitting(engine, "max_batch_size", needs, room)
        budget = counted(engine.prefill_budget_tokens, "prompt token")
        return (
            f"steps of {counted(engine.max_batch_size, 'request')} and {budget} take {gib(needs(engine))} at least;"
            f" {gib(room)} are left for them, room for no more than {tokens:,} prompt tokens or {requests:,} requests"
        )

    def _windows(self, rule: "PageRule") -> Iterator[str]:
        """The pages that the model's windows spare, if it has any."""
        windows = [layer.window for layer in self.model.spec.layers if layer.window is not None]
        if rule.window is not None:
            held = f"a request holds {rule.most_pages * rule.page_size:,} tokens at most"
            yield f"pages behind the window of {rule.window:,} tokens are given back: {held}"
        elif windows:
            which = f"{len(windows)} of {self.model.num_hidden_layers} layers see {max(windows):,} tokens"
            yield f"{which}, the others the whole context, so a request keeps all its pages"
