"""The configuration of a cluster: one YAML file, read once at startup into frozen models.

``load_config(path)`` reads a file, ``parse_config`` checks a program's own settings. Folders in a file are relative to
the file. ``demo:NAME`` is a folder of the demo model that ships with the package; ``shape:NAME`` is a well-known
model's shape, without weights. Every mistake is a ConfigError that names the file, the key and the fix.
"""

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from punica_serve.base_model.lora_layout import MAX_LORA_RANK
from punica_serve.base_model.memory_budget import USUAL_RANK, auto_lora_pages
from punica_serve.base_model.model_config import ModelConfig, ModelDtype
from punica_serve.batching_rules import default_max_prefills
from punica_serve.config.device_groups import grouped
from punica_serve.config.fields import (
    AutoInt32,
    AutoNonNegativeInt,
    BatchSize,
    ConfigModel,
    Device,
    Flag,
    Folder,
    Int32,
    Name,
    NameOrFile,
    NonNegative,
    NonNegativeInt,
    PlacementName,
    Port,
    PositiveInt,
    Seconds,
)
from punica_serve.config.registry_section import RegistryConfig, sqlite_url
from punica_serve.config.simulation_section import SimulationConfig
from punica_serve.config.store_section import StoreConfig
from punica_serve.config.tls_section import HttpsConfig, TlsConfig
from punica_serve.config.web_fields import Network, Origin
from punica_serve.config.yaml_file import read_yaml, validated
from punica_serve.errors import ConfigError
from punica_serve.process.logs import LogFormat
from punica_serve.protocol import PrefixScope

#: Resources reserved on a Ray node, by Ray's names.
Resources = Annotated[dict[Name, Annotated[float, Field(gt=0)]], Field(min_length=1)]


#: How a request starts whose adapter is not on the device. wait: when all of it is there. layerwise: while it is being
#: copied, as each layer waits for its own weights.
ColdStart = Literal["wait", "layerwise", "cpu_assist", "auto"]

#: The kernels that serve prefills' attention on a GPU.
AttentionBackend = Literal["auto", "triton", "flashinfer"]


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
    #: `target_step_ms` by `scheduler.profile`, and whose adapters and KvCache fit.
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
    #: Pages of the LoRA pool for each group of projections; a page holds 8 rank rows. auto: room for `max_batch_size`
    #: adapters of `expected_lora_rank`, within a quarter of what a GPU has beside the weights.
    num_lora_pages: AutoInt32 = 256
    #: Host memory for adapters, packed for the LoRA pool. A GPU worker allocates it at startup, page-locked. auto: room
    #: for four times as many adapters, within half of the host's free memory, which its GPUs share.
    host_cache_bytes: AutoNonNegativeInt = 1 << 30
    #: Rank of the adapters for which `auto` makes room; a runner takes the highest of its config's adapters if that is
    #: more.
    expected_lora_rank: PositiveInt = USUAL_RANK
    #: Prompt tokens in one step; a longer prompt is prefilled in chunks.
    prefill_budget_tokens: Int32 = 512
    #: Requests that are prefilled in one step, within its budget. By default one for each 32 of `max_batch_size`, which
    #: keeps a full batch full with answers of 32 tokens or more, and at least one, as in the paper.
    max_prefills: Int32 | None = None
    #: Keep full pages of the KvCache when their request ends, for requests that begin with the same tokens.
    prefix_caching: Flag = False
    #: Who shares such pages. tenant: the requests of one tenant. cluster: those of all, so the time to a first token
    #: tells what others have asked.
    prefix_scope: PrefixScope = "tenant"
    #: How a request starts whose adapter is not on the device. layerwise: while it is copied from host memory, layer by
    #: layer. wait: when all of it is there. cpu_assist: as layerwise, but while nobody decodes, CPU processes compute
    #: what it adds until its layers are there. auto: layerwise or cpu_assist, whichever is faster as foreseen.
    cold_start: ColdStart = "layerwise"
    #: CPU processes of cpu_assist and auto, each bound to a core; fewer where the worker may use fewer cores.
    cpu_assist_processes: Annotated[int, Field(strict=True, ge=1, le=32)] = 8
    #: Attention of prefills on a GPU. triton: our kernel. flashinfer: FlashInfer's for Hopper, compiled at the start if
    #: need be. auto: FlashInfer's for prefills so long that it measured faster, if it is installed and compiled.
    attention: AttentionBackend = "auto"
    #: Replay decode steps on a GPU as CUDA graphs. Without them every kernel is launched separately, which is slower.
    cuda_graphs: Flag = True
    #: The ranks of a group of GPUs add up tensors of so many bytes and less in one shot, over memory that all of them
    #: map, and larger ones by NCCL, which takes all if it is 0. `punica-serve bench collectives` tells where the two
    #: cross on a machine.
    one_shot_bytes: Annotated[int, Field(strict=True, ge=0, le=1 << 30, multiple_of=256)] = 0
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
    def lora_pages(self) -> int:
        """Pages of the LoRA pool for each group of projections: the setting, or those that `auto` aims at."""
        return self.num_lora_pages or auto_lora_pages(self.most_requests, self.expected_lora_rank)

    @property
    def most_requests(self) -> int:
        """Requests in one step, or the most that `auto` may take."""
        return self.max_batch_size or _MAX_AUTO_BATCH

    def dtype_of(self, model: ModelConfig) -> ModelDtype:
        """The data type in which the model is served."""
        return self.dtype or model.dtype

    def context_of(self, model: ModelConfig) -> int:
        """Longest prompt plus answer, in tokens. Raises ConfigError if `max_context` exceeds the model's limit."""
        limit = model.max_position_embeddings
        if self.max_context is not None and self.max_context > limit:
            message = f"`engine.max_context` is {self.max_context}, but the model's limit is {limit}; lower it"
            raise ConfigError(message, param="engine.max_context")
        return self.max_context or limit


class ConsolidationConfig(ConfigModel):
    """Emptying lightly loaded GPUs: their requests move to busier ones, which recompute their KvCache.

    A GPU is emptied when that prefill takes less GPU time than emptying saves. The saving is the time until its
    requests would have finished anyway, `idle_s` at most.
    """

    enabled: Flag = True
    #: How often to look for a GPU to empty; one is emptied at a time.
    interval_s: Seconds = 5.0
    #: Prefill speed of a GPU, which prices a move: the request's tokens divided by this. `punica-serve profile`
    #: measures it.
    prefill_tokens_per_s: PositiveInt = 5000
    #: How long an emptied GPU typically stays idle, that is, until load rises again.
    idle_s: Seconds = 30.0


class ScaleConfig(ConfigModel):
    """Advice on the number of GPUs. Advice needs more than one observation, so that it does not flap."""

    #: Advice never goes below this many GPUs, and asks for more while there are fewer.
    min_gpus: PositiveInt = 1
    #: Ask for more GPUs when none has been lightly loaded for this long.
    busy_s: Seconds = 5.0
    #: Offer a runner for release when all its GPUs have been idle for this long.
    idle_s: Seconds = 60.0
    #: Command and arguments to run when the advice changes; it gets the advice as JSON on standard input.
    hook: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    #: Timeout of the hook, after which it is killed.
    hook_timeout_s: Seconds = 60.0


class SchedulerConfig(ConfigModel):
    """The scheduler's address and its policies."""

    host: Name = "127.0.0.1"
    #: With 0, `punica-serve up` chooses a free port.
    port: Port = 8100
    #: Which GPU with room gets a request. punica: the one with the largest working set. The others are for comparison:
    #: the smallest working set, the first by UUID, one drawn from the request's id. With `profile`, rank_aware: where a
    #: request costs all requests the least time (CaraServe); consolidate_slo: punica, while promised latencies hold.
    placement: PlacementName = "punica"
    #: How long steps take on these GPUs: a profile that ships with the package, or a YAML file written by
    #: `punica-serve profile`.
    profile: NameOrFile | None = None
    #: For consolidate_slo: the share by which predicted times are taken to be longer.
    slo_margin: NonNegative = 0.15
    #: For rank_aware: GPUs that have the adapter, or whose worker has it in host memory, go before all others.
    adapters_on_host: Flag = False
    #: Queue order. fcfs: first come, first served. vtc: the tenant served least so far (virtual token counters).
    #: deadline: the earliest promise of a first token (`slo`); a request without one is due at `queue_timeout_s`.
    queue: Literal["fcfs", "vtc", "deadline"] = "fcfs"
    #: Move requests that lack KvCache pages to other GPUs. If false, they wait for their own GPU; for comparison only.
    migration: Flag = True
    #: A GPU is lightly loaded when its requests use at most this share of its batch and of its KvCache.
    light_load: Annotated[float, Field(strict=True, gt=0, lt=1)] = 0.25
    consolidation: ConsolidationConfig = ConsolidationConfig()
    scale: ScaleConfig = ScaleConfig()
    #: Requests that may wait for a GPU; further ones are refused with 429.
    max_queue: PositiveInt = 10_000
    #: A request that finds no GPU for this long fails with 429.
    queue_timeout_s: Seconds = 600.0
    #: How long a request is queued, without blocking others, for an adapter that the store has failed to deliver twice.
    store_patience_s: Seconds = 30.0
    #: After a start, how long the scheduler waits for runners and frontends to reconnect before it places requests.
    settle_s: Annotated[float, Field(strict=True, ge=0)] = 0.5
    #: Audit the scheduler's accounting after every `audit_every`th event; an inconsistency ends the process.
    audit: Flag = False
    audit_every: PositiveInt = 1


class RunnerConfig(ConfigModel):
    """The workers of one host."""

    #: One worker for each: "cpu", "cuda:0", or "simulated", which only keeps accounts and runs no model. A group, such
    #: as "cuda:0,cuda:1", serves one copy of the model together: each GPU a share of it, in a process of its own.
    devices: Annotated[tuple[Device, ...], Field(min_length=1)] = ("cpu",)
    #: Makes groups of so many neighbouring `devices`.
    tensor_parallel: PositiveInt = 1
    #: A worker that is not ready by then is killed and restarted.
    ready_timeout_s: Seconds = 300.0
    #: A worker that answers no ping for this long, as after SIGSTOP, is killed and restarted.
    silence_timeout_s: Seconds = 10.0
    #: A worker that answers but completes no step for this long, although a request could run, is killed and restarted.
    #: Must exceed the longest step, kernel compilation included. Requests awaiting their adapter don't count.
    step_timeout_s: Seconds = 60.0
    #: How long a slow store may keep a request on a GPU awaiting its adapter; after that the request tries another GPU.
    #: Then no request waits on a GPU until the store has delivered again. The adapter is still loaded.
    fetch_timeout_s: Seconds = 10.0
    #: How long a worker may take to stop before it is killed.
    stop_timeout_s: Seconds = 5.0
    #: After SIGTERM, how long requests have to move to other runners before the workers stop anyway.
    drain_timeout_s: Seconds = 30.0

    @property
    def workers(self) -> tuple[str, ...]:
        """The device or group of each worker."""
        return grouped(self.devices, self.tensor_parallel)

    @model_validator(mode="after")
    def _groups_are_possible(self) -> Self:
        grouped(self.devices, self.tensor_parallel)
        return self


#: How to treat a field of OpenAI's or TGI's API that is not implemented and would change the answer.
UnknownFields = Literal["refuse", "warn"]


class FrontendConfig(ConfigModel):
    """The HTTP and websocket server."""

    host: Name = "127.0.0.1"
    port: Port = 8000
    #: Speak HTTPS with clients. Plain HTTP, the default, needs a TLS proxy in front, or a trusted network.
    tls: HttpsConfig | None = None
    #: HTTP connections and websockets at once; further ones are answered with 503. Each uses an open file.
    max_connections: PositiveInt = 16_384
    #: Treat everybody as an administrator. By default only clients on this machine are, until an API key exists.
    insecure_no_auth: Flag = False
    #: Answer GET /metrics without a key; otherwise it needs an administrator's key.
    public_metrics: Flag = False
    #: Handling of unsupported fields in OpenAI's and TGI's bodies. refuse: an error that names the field. warn: answer
    #: without it, and say so in the header X-Punica-Ignored-Fields and in the log. Fields that select an adapter
    #: are always refused.
    unknown_fields: UnknownFields = "refuse"
    #: How many adapters, tenants and unknown fields, the most used of each, get metric series of their own. The rest
    #: are counted as `other`.
    metrics_names: NonNegativeInt = 20
    #: Addresses and networks of proxies whose X-Forwarded-Proto and X-Forwarded-For are trusted; this machine's by
    #: default. A proxy must overwrite these headers and pass on `Host`.
    trusted_proxies: tuple[Network, ...] = ("127.0.0.1", "::1")
    #: Web origins that may call this frontend from a browser, such as https://app.example.com, or "*" for all. They
    #: need an API key; cookies are never accepted.
    cors_origins: tuple[Origin, ...] = ()
    #: After SIGTERM, how long answers in progress may take before they are cancelled.
    drain_timeout_s: Seconds = 30.0


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


_Rank = Annotated[int, Field(strict=True, ge=1, le=MAX_LORA_RANK)]


class DummyAdaptersConfig(ConfigModel):
    """Adapters that have a shape but no files, called dummy-0, dummy-1 and so on: for load tests and simulations."""

    count: NonNegativeInt = 0
    #: Rank of all adapters, or a list of ranks, each of which as many adapters have, in a fixed shuffled order. A rank
    #: that is listed twice is twice as frequent.
    rank: Annotated[tuple[_Rank, ...], Field(min_length=1), BeforeValidator(_listed)] = (16,)
    #: Linear modules that have LoRA weights: q_proj, k_proj and v_proj, or all seven.
    modules: Literal["qkv", "all"] = "all"


class LinksConfig(ConfigModel):
    """How the processes of a cluster detect a peer that is frozen or gone."""

    #: A process with nothing else to send for this long sends a heartbeat.
    heartbeat_s: Seconds = 2.0
    #: A peer that is silent for this long is disconnected. Its requests continue elsewhere, or when it is back.
    silence_s: Seconds = 10.0

    @model_validator(mode="after")
    def _leaves_time_to_speak(self) -> Self:
        if self.silence_s < 2 * self.heartbeat_s:
            raise ValueError("silence_s must be at least twice heartbeat_s, or healthy peers are disconnected")
        return self


class RayConfig(ConfigModel):
    """Resources that each process of `up --ray` reserves on its node, by Ray's names, such as {CPU: 1}."""

    scheduler: Resources = Field(default_factory=lambda: {"CPU": 1.0})
    frontend: Resources = Field(default_factory=lambda: {"CPU": 1.0})
    #: By default one CPU or GPU for each of `runner.devices`.
    runner: Resources | None = None


class LogConfig(ConfigModel):
    """Format and content of the logs, which go to standard error. --log-level sets the level."""

    #: text: for people. json: one object per line.
    format: LogFormat = LogFormat.TEXT
    #: Log one line at level info when a request ends, with its tokens and times.
    requests: Flag = True


def _checked_endpoint(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must have the form http://host:port or https://host:port")
    return url


class TracingConfig(ConfigModel):
    """OpenTelemetry traces of requests; off without an endpoint. Needs the extra `otel`."""

    #: URL of a collector, such as http://127.0.0.1:4318; OTEL_EXPORTER_OTLP_ENDPOINT by default.
    otlp_endpoint: Annotated[Name, AfterValidator(_checked_endpoint)] | None = Field(default=None, repr=False)


def _default_data_folder() -> Path:
    """The data folder by the XDG convention. Raises ConfigError."""
    try:
        home = os.environ.get("XDG_DATA_HOME") or Path("~/.local/share").expanduser()
    except RuntimeError as error:
        message = "`data_folder` is not set and the user has no home folder; set `data_folder` or XDG_DATA_HOME"
        raise ConfigError(message, param="data_folder") from error
    return Path(home) / "punica-serve"


class ClusterConfig(ConfigModel):
    """A whole config file. Every process reads the same file and uses its own part."""

    engine: EngineConfig
    #: lora_id -> PEFT folder.
    adapters: dict[str, Folder] = Field(default_factory=dict)
    dummy_adapters: DummyAdaptersConfig = DummyAdaptersConfig()
    #: Persistent files of this host's processes; ~/.local/share/punica-serve by default.
    data_folder: Folder = Field(default_factory=_default_data_folder)
    registry: RegistryConfig = RegistryConfig()
    store: StoreConfig = StoreConfig()
    #: For `runner.devices: [simulated]` and `punica-serve simulate`.
    simulation: SimulationConfig = SimulationConfig()
    #: Refuse adapters whose base_model_name_or_path differs from the base model; by default they only log a warning.
    strict_base: Flag = False
    log: LogConfig = LogConfig()
    tracing: TracingConfig = TracingConfig()
    links: LinksConfig = LinksConfig()
    #: Use TLS between processes, with wss:// URLs. Off by default, which needs a trusted network.
    tls: TlsConfig | None = None
    scheduler: SchedulerConfig = SchedulerConfig()
    runner: RunnerConfig = RunnerConfig()
    frontend: FrontendConfig = FrontendConfig()
    ray: RayConfig = RayConfig()

    def without_auth(self, is_wanted: bool) -> Self:
        """This config; if ``is_wanted``, with frontends that need no authentication."""
        if not is_wanted:
            return self
        return self.model_copy(update={"frontend": self.frontend.model_copy(update={"insecure_no_auth": True})})

    def with_log_format(self, log_format: LogFormat | None) -> Self:
        """This config, with this log format if one is given."""
        if log_format is None:
            return self
        return self.model_copy(update={"log": self.log.model_copy(update={"format": log_format})})

    @property
    def registry_url(self) -> str:
        """The database's URL with its password. Raises ConfigError for a password file that can't be read."""
        return self.registry.url_with_password() or sqlite_url(self.data_folder / "registry.db")

    @property
    def store_url(self) -> str:
        return self.store.url or str(self.data_folder / "store")


def load_config(path: Path) -> ClusterConfig:
    """Reads a config file. Raises ConfigError."""
    document = read_yaml(path, what="config file", example_key="engine")
    return parse_config(document, source=str(path), folder=path.resolve().parent)


def parse_config(document: dict[str, Any], *, source: str, folder: Path) -> ClusterConfig:
    """Checks a config given as a mapping. Relative paths start from ``folder``.

    Messages name ``source``. Raises ConfigError.
    """
    return validated(ClusterConfig, document, source=source, folder=folder)
