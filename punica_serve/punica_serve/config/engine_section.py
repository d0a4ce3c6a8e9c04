"""The config section `engine`: one model replica, its weights, memory pools and the shape of its steps."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from punica_serve.base_model.lora_layout import MAX_LORA_RANK, USUAL_LORA_RANK, LoraLimits
from punica_serve.base_model.memory_budget import USUAL_RANK, auto_lora_pages
from punica_serve.base_model.model_config import ModelConfig, ModelDtype
from punica_serve.base_model.rank import Rank
from punica_serve.batching_rules import default_max_prefills
from punica_serve.config.device_groups import ranks_of
from punica_serve.config.fields import (
    AutoInt32,
    AutoNonNegativeInt,
    BatchSize,
    ConfigModel,
    File,
    Flag,
    Folder,
    Int32,
    Name,
    PositiveInt,
)
from punica_serve.errors import ConfigError
from punica_serve.protocol import PrefixScope

#: How a request starts whose adapter is not on the device. wait: when all of it is there. layerwise: while it is being
#: copied, as each layer waits for its own weights.
ColdStart = Literal["wait", "layerwise", "cpu_assist", "auto"]

#: The kernels that serve prefills' attention on a GPU.
AttentionBackend = Literal["auto", "triton", "flashinfer"]

#: How the ranks of a group of GPUs add up.
Exchange = Literal["auto", "nccl", "fused", "flashinfer"]

_MAX_AUTO_BATCH = 256


class EngineConfig(ConfigModel):
    """One model replica: its weights, its memory pools and the shape of its steps."""

    #: Folder of the base model in Hugging Face's format.
    model: Folder
    #: Folder of the tokenizer; the model's own by default. A model with dummy weights may have none.
    tokenizer: Folder | None = None
    #: Name of the base model in the API; the folder's name by default.
    model_name: Name | None = None
    #: "dummy" makes random weights of config.json's shape, for benchmarks, and reads no weight files.
    load_format: Literal["safetensors", "dummy"] = "safetensors"
    #: Data type of weights, KvCache and computation; the checkpoint's own by default.
    dtype: ModelDtype | None = None
    #: Longest prompt plus answer, in tokens; the model's own limit by default.
    max_context: PositiveInt | None = None
    #: Requests in one step. The paper uses 32. auto: the largest of 32, 64, 128 and 256 whose decode steps keep
    #: `target_step_ms` by `scheduler.profile`, and whose adapters, KvCache and steps fit.
    max_batch_size: BatchSize = 32
    #: For `auto`: the longest decode step, with requests of `target_context` tokens, of which the share
    #: `target_distinct` have an adapter of their own.
    target_step_ms: Annotated[float, Field(strict=True, gt=0)] = 25.0
    target_context: PositiveInt = 512
    target_distinct: Annotated[float, Field(strict=True, ge=0, le=1)] = 1.0
    #: Tokens in a page of the KvCache.
    page_size: Int32 = 16
    #: KvCache pages. By default as many as `device_memory_share` leaves room for; 1024 on a CPU.
    num_kv_pages: Int32 | None = None
    #: Share of a GPU's memory that may be in use once the KvCache is allocated; the rest is for a step's temporary
    #: buffers.
    device_memory_share: Annotated[float, Field(strict=True, gt=0, lt=1)] = 0.9
    #: Pages of the LoRA pool for each group of projections; a page holds 8 rank rows. auto, the default: room for
    #: `max_batch_size` adapters of `expected_lora_rank`, within a quarter of what a GPU has beside the weights.
    num_lora_pages: AutoInt32 = None
    #: Host memory for adapters, packed for the LoRA pool. A GPU worker allocates it at startup, page-locked. auto, the
    #: default: room for four times as many adapters, within half of what the host, or the container, has available,
    #: which its GPUs share.
    host_cache_bytes: AutoNonNegativeInt = None
    #: Rank of the adapters for which `auto` makes room; a runner takes the highest of its config's adapters if that is
    #: more.
    expected_lora_rank: PositiveInt = USUAL_RANK
    #: The highest rank of adapters; a higher one is refused. A GPU worker compiles kernels and captures CUDA graphs for
    #: ranks up to it alone, and one above 128 needs graphs of its own.
    max_lora_rank: Annotated[int, Field(strict=True, ge=1, le=MAX_LORA_RANK)] = USUAL_LORA_RANK
    #: Serve adapters that update `embed_tokens` or `lm_head`, which takes pages, kernels and CUDA graphs of their own.
    lora_vocabulary: Flag = False
    #: Prompt tokens in one step; a longer prompt is prefilled in chunks.
    prefill_budget_tokens: Int32 = 512
    #: Requests that are prefilled in one step, within its budget. By default one for each 32 of `max_batch_size`, which
    #: keeps a full batch full with answers of 32 tokens or more, and at least one, as in the paper.
    max_prefills: Int32 | None = None
    #: Keep full pages of the KvCache when their request ends, for requests that begin with the same tokens.
    prefix_caching: Flag = True
    #: Who shares such pages. tenant: the requests of one tenant. cluster: those of all, so the time to a first token
    #: tells what others have asked.
    prefix_scope: PrefixScope = "tenant"
    #: Decodes on a GPU that share cached pages read them once for all, not once each. It takes `prefix_caching`. Where
    #: nothing is shared it costs 1.5 % of the tokens.
    shared_prefix_attention: Flag = False
    #: How a request starts whose adapter is not on the device. layerwise: while it is copied from host memory, layer by
    #: layer. wait: when all of it is there. cpu_assist: as layerwise, but while nobody decodes, CPU processes compute
    #: what it adds until its layers are there. auto: layerwise or cpu_assist, whichever is predicted to be faster.
    cold_start: ColdStart = "layerwise"
    #: CPU processes of cpu_assist and auto, each bound to a core; fewer where the worker may use fewer cores.
    cpu_assist_processes: Annotated[int, Field(strict=True, ge=1, le=32)] = 8
    #: Attention of prefills on a GPU. triton: our kernel. flashinfer: FlashInfer's for Hopper, compiled at the start if
    #: need be. auto: FlashInfer's for prefills so long that it measured faster, if it is installed and compiled.
    attention: AttentionBackend = "auto"
    #: For attention's auto: a table that `punica-serve bench prompts --table` has measured on such a GPU, in YAML. By
    #: default one that ships with the package, if there is one for the GPU.
    attention_times: File | None = None
    #: Compile FlashInfer's kernels that auto would take and that are missing, for the next start, by processes that
    #: yield to all others. Without it auto takes only what is compiled.
    compile_flashinfer: Flag = True
    #: Replay decode steps on a GPU as CUDA graphs. Without them every kernel is launched separately, which is slower.
    cuda_graphs: Flag = True
    #: The ranks of a group have a share of the A of q, k, v, gate and up too, instead of all of it, if
    #: `expected_lora_rank` is this or more. It takes two more exchanges a layer; not measured. By default never.
    divide_lora_from: PositiveInt | None = None
    #: How the ranks of a group of GPUs add up their tensors. auto: each size by the way that measured fastest on such
    #: GPUs: NCCL, one or two shots over memory that all of them map, or a layer's exchange, its sums and its norm in
    #: one kernel or in FlashInfer's; NCCL where nobody measured. nccl: always so. fused: as auto, but that kernel up to
    #: 1 MiB at least, also on GPUs where nobody measured it. flashinfer: the same with FlashInfer's, once its kernels
    #: are compiled.
    exchange: Exchange = "auto"
    #: Times of `auto`, as `punica-serve bench collectives --table FILE` writes them; by default those that ship.
    exchange_times: File | None = None
    #: Torch threads of a CPU worker; torch's own choice by default.
    cpu_threads: Annotated[int, Field(strict=True, ge=1, le=1024)] | None = None

    @property
    def starts_by_layer(self) -> bool:
        """Whether a prefill may start before all of its adapter is on the device."""
        return self.cold_start != "wait"

    @property
    def uses_cpu_assist(self) -> bool:
        """Whether CPU processes may help."""
        return self.cold_start in ("cpu_assist", "auto")

    @property
    def reads_prefixes_once(self) -> bool:
        """Whether decodes that share cached pages read them once for all."""
        return self.prefix_caching and self.shared_prefix_attention

    @property
    def served_name(self) -> str:
        """The base model's name in the API."""
        return self.model_name or self.model.name

    @property
    def num_prefills(self) -> int:
        """Requests that are prefilled in one step at most."""
        return self.max_prefills or default_max_prefills(self.max_batch_size)

    @property
    def tokenizer_folder(self) -> Path:
        return self.tokenizer or self.model

    @property
    def lora_limits(self) -> LoraLimits:
        """The adapters that are served."""
        return LoraLimits(self.max_lora_rank, self.lora_vocabulary)

    @property
    def lora_pages(self) -> int:
        """Pages of the LoRA pool for each group of projections: the setting, or those that `auto` aims at."""
        return self.num_lora_pages or auto_lora_pages(self.most_requests, self.expected_lora_rank, self.lora_limits)

    @property
    def most_requests(self) -> int:
        """Requests in one step, or the most that `auto` may take."""
        return self.max_batch_size or _MAX_AUTO_BATCH

    def check_device(self, device: str) -> None:
        """Raises ConfigError if a setting needs a GPU and the worker's ``device`` is a CPU."""
        if self.attention == "flashinfer" and "cpu" in ranks_of(device):
            raise ConfigError(
                "`engine.attention` is flashinfer, whose kernels need a Hopper GPU, but a device is cpu; take auto, or"
                " name a GPU",
                param="engine.attention",
            )

    @property
    def divides_lora(self) -> bool:
        """Whether the ranks of a group have a share of each adapter's A."""
        return self.divide_lora_from is not None and self.expected_lora_rank >= self.divide_lora_from

    def share_of(self, model: ModelConfig, rank: Rank) -> ModelConfig:
        """A rank's share of the model. Raises ConfigError, by name, for what such a group can't divide."""
        return model.shard(rank, divides_lora=self.divides_lora)

    def dtype_of(self, model: ModelConfig) -> ModelDtype:
        """The data type in which the model is served."""
        return self.dtype or model.dtype

    def value_bytes_of(self, model: ModelConfig) -> int:
        """Bytes of a weight, and of a key's or value's element."""
        return 4 if self.dtype_of(model) == "float32" else 2

    def context_of(self, model: ModelConfig) -> int:
        """Longest prompt plus answer, in tokens. Raises ConfigError if `max_context` exceeds the model's limit."""
        limit = model.max_position_embeddings
        if self.max_context is not None and self.max_context > limit:
            message = f"`engine.max_context` is {self.max_context}, but the model's limit is {limit}; lower it"
            raise ConfigError(message, param="engine.max_context")
        return self.max_context or limit
