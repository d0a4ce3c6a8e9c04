"""The configuration of a cluster: one YAML file, read once at the edge into frozen models.

``load_config(path)`` is the way in for files, ``parse_config`` for a program's own settings. Folders in a file are
relative to the file itself; ``demo:NAME`` is a folder of the demo model that comes with the package, and ``shape:NAME``
one of a well-known model's shape, without weights. Every mistake is a ConfigError that names the file, the key and the
fix.
"""

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from punica_serve.config_fields import (
    ConfigModel,
    Device,
    Flag,
    Folder,
    Int32,
    Name,
    NonNegativeInt,
    Port,
    PositiveInt,
    Seconds,
)
from punica_serve.errors import ConfigError
from punica_serve.logs import LogFormat
from punica_serve.lora_layout import MAX_LORA_RANK
from punica_serve.model_config import ModelConfig, ModelDtype
from punica_serve.registry.config import RegistryConfig, sqlite_url
from punica_serve.simulation.config import SimulationConfig
from punica_serve.store.config import StoreConfig
from punica_serve.tls_config import TlsConfig
from punica_serve.yaml_file import read_yaml, validated

#: Of a node, by Ray's name.
Resources = Annotated[dict[Name, Annotated[float, Field(gt=0)]], Field(min_length=1)]


class EngineConfig(ConfigModel):
    """One model replica: its weights, its pools and the shape of its steps."""

    #: Folder of the base model in Hugging Face's format.
    model: Folder
    #: Folder of the tokenizer; the model's own by default. A model of dummy weights may have none.
    tokenizer: Folder | None = None
    #: Name of the base model in the API; the folder's name by default.
    model_name: Name | None = None
    #: "dummy" makes random weights of config.json's shape, for benchmarks, and reads no weight files.
    load_format: Literal["safetensors", "dummy"] = "safetensors"
    #: What weights and KvCache are held and computed in; the checkpoint's own by default.
    dtype: ModelDtype | None = None
    #: Longest prompt plus answer, in tokens; the model's own limit by default.
    max_context: PositiveInt | None = None
    #: Requests in one step. 32 is the paper's.
    max_batch_size: Int32 = 32
    #: Tokens in a page of the KvCache.
    page_size: Int32 = 16
    #: By default as many as `device_memory_share` leaves room for; 1024 on a CPU.
    num_kv_pages: Int32 | None = None
    #: How much of a GPU's memory may be in use once the KvCache is made; the rest is for what steps need in passing.
    device_memory_share: Annotated[float, Field(strict=True, gt=0, lt=1)] = 0.9
    #: Pages of the LoRA pool for each group of projections; a page holds 8 rank rows.
    num_lora_pages: Int32 = 256
    #: Host memory for adapters, packed for the pool; a worker on a GPU takes it at the start, page-locked.
    host_cache_bytes: Annotated[int, Field(strict=True, ge=0)] = 1 << 30
    #: Prompt tokens in one step; a longer prompt is prefilled in chunks.
    prefill_budget_tokens: Int32 = 512
    #: Replay decode steps on a GPU as CUDA graphs. Without, every kernel is launched by itself, which is slower.
    cuda_graphs: Flag = True
    #: Threads of torch in a worker on CPU; torch's own choice by default.
    cpu_threads: Annotated[int, Field(strict=True, ge=1, le=1024)] | None = None

    @property
    def served_name(self) -> str:
        """What the API calls the base model."""
        return self.model_name or self.model.name

    @property
    def tokenizer_folder(self) -> Path:
        return self.tokenizer or self.model

    def dtype_of(self, model: ModelConfig) -> ModelDtype:
        """What the model is served in."""
        return self.dtype or model.dtype

    def context_of(self, model: ModelConfig) -> int:
        """Tokens of the longest prompt plus answer. Raises ConfigError if more are asked for than the model knows."""
        limit = model.max_position_embeddings
        if self.max_context is not None and self.max_context > limit:
            message = f"`engine.max_context` is {self.max_context}, the model's limit is {limit}; lower it"
            raise ConfigError(message, param="engine.max_context")
        return self.max_context or limit


class ConsolidationConfig(ConfigModel):
    """Emptying lightly loaded GPUs: their requests move to busier ones, which prefill them anew.

    A GPU is emptied when that prefill takes less GPU time than emptying saves. What it saves is the time until its
    requests would have ended by themselves, and `idle_s` at most.
    """

    enabled: Flag = True
    #: How often a GPU to empty is looked for; one is emptied at a time.
    interval_s: Seconds = 5.0
    #: What a GPU prefills in a second: moving a request costs its tokens over this. `punica-serve profile` measures it.
    prefill_tokens_per_s: PositiveInt = 5000
    #: How long a GPU that was emptied stays idle, typically: until the next rise of the load.
    idle_s: Seconds = 30.0


class ScaleConfig(ConfigModel):
    """Advice on the number of GPUs. Nothing is advised on one look alone, so that advice does not flap."""

    #: No runner is advised away below this many GPUs; with fewer, more are asked for.
    min_gpus: PositiveInt = 1
    #: More GPUs are asked for when none has been lightly loaded for so long.
    busy_s: Seconds = 5.0
    #: A runner may be released when all its GPUs have been idle for so long.
    idle_s: Seconds = 60.0
    #: Command and arguments that run when the advice changes, with the advice as JSON on standard input.
    hook: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    #: A hook that takes longer is killed.
    hook_timeout_s: Seconds = 60.0


class SchedulerConfig(ConfigModel):
    """Where the scheduler listens and how it places."""

    host: Name = "127.0.0.1"
    #: 0 lets `punica-serve up` choose a free one.
    port: Port = 8100
    #: Which of the GPUs with room a request goes to. punica: the one with the largest working set. The others are
    #: there to be compared with it: the smallest, the first by UUID, one drawn by the request's id.
    placement: Literal["punica", "most_idle", "first_fit", "random"] = "punica"
    #: Who is next. fcfs: who came first. vtc: the tenant that has been served least (virtual token counters).
    queue: Literal["fcfs", "vtc"] = "fcfs"
    #: Move requests that lack KvCache to other GPUs. Without, they wait for the GPU that they ran on: a comparison.
    migration: Flag = True
    #: A GPU is lightly loaded when its requests fill at most this share of its batch, and of its KvCache.
    light_load: Annotated[float, Field(strict=True, gt=0, lt=1)] = 0.25
    consolidation: ConsolidationConfig = ConsolidationConfig()
    scale: ScaleConfig = ScaleConfig()
    #: Requests that may wait for a GPU; beyond it they are refused with 429.
    max_queue: PositiveInt = 10_000
    #: A request that found no GPU for so long fails with 429.
    queue_timeout_s: Seconds = 600.0
    #: How long a request waits, on no GPU and in nobody's way, for an adapter that the store has failed to give twice.
    store_patience_s: Seconds = 30.0
    #: After a start, how long the scheduler waits for runners and frontends to come back before it places.
    settle_s: Annotated[float, Field(strict=True, ge=0)] = 0.5
    #: Check the scheduler's own books after every `audit_every`th event; a contradiction ends the process.
    audit: Flag = False
    audit_every: PositiveInt = 1


class RunnerConfig(ConfigModel):
    """The workers of one host."""

    #: One worker each: "cpu", "cuda:0", or "simulated", which keeps count and runs no model.
    devices: Annotated[tuple[Device, ...], Field(min_length=1)] = ("cpu",)
    #: A worker that is not ready by then is killed and started again.
    ready_timeout_s: Seconds = 300.0
    #: A worker that answers no ping for so long, as after SIGSTOP, is killed and started again.
    silence_timeout_s: Seconds = 10.0
    #: A worker that answers, but makes no step for so long while a request could run, is killed and started again:
    #: longer than any step takes, compiling a kernel included. Requests that wait for their adapter can't run.
    step_timeout_s: Seconds = 60.0
    #: A request whose adapter the store has not given by then tries another GPU: so long, at most, a slow store keeps
    #: it in a place that others could use. From then on nobody waits, until the store has given something again. The
    #: adapter is still brought.
    fetch_timeout_s: Seconds = 10.0
    #: How long a worker may take to stop before it is killed.
    stop_timeout_s: Seconds = 5.0
    #: After SIGTERM, how long requests may take to move to other runners before the workers stop all the same.
    drain_timeout_s: Seconds = 30.0
    #: Wait before a dead worker starts again: doubled at every death up to the highest, reset by a minute of life.
    restart_backoff_s: Seconds = 0.5
    restart_backoff_max_s: Seconds = 30.0


class FrontendConfig(ConfigModel):
    """The public face."""

    host: Name = "127.0.0.1"
    port: Port = 8000
    #: HTTP connections and websockets at once; one beyond it is answered with 503. Each takes an open file.
    max_connections: PositiveInt = 16_384
    #: Let everybody in as an administrator. By default that is only so for this machine's own clients, until there is
    #: an API key.
    insecure_no_auth: Flag = False
    #: Answer GET /metrics without a key; else it takes an administrator's.
    public_metrics: Flag = False
    #: Adapters, and tenants, that have series of their own in the metrics: the most used. The rest is `other`.
    metrics_names: NonNegativeInt = 20
    #: After SIGTERM, how long the answers under way may take before they are cancelled.
    drain_timeout_s: Seconds = 30.0


class DummyAdaptersConfig(ConfigModel):
    """Adapters that exist by their shape alone, called dummy-0, dummy-1 and so on: for load tests and simulations."""

    count: NonNegativeInt = 0
    #: On all linear modules.
    rank: Annotated[int, Field(strict=True, ge=1, le=MAX_LORA_RANK)] = 16


class LinksConfig(ConfigModel):
    """How the processes of a cluster notice that one of them is frozen, or gone without a word."""

    #: A process that has had nothing else to say for so long says that it lives.
    heartbeat_s: Seconds = 2.0
    #: A peer that has said nothing for so long is cut off; what it had or owned goes on elsewhere, or when it is back.
    silence_s: Seconds = 10.0

    @model_validator(mode="after")
    def _leaves_time_to_speak(self) -> Self:
        if self.silence_s < 2 * self.heartbeat_s:
            raise ValueError("silence_s must be at least twice heartbeat_s, or living peers are cut off")
        return self


class RayConfig(ConfigModel):
    """What each process of `up --ray` reserves of its node, in Ray's own names, such as {CPU: 1}."""

    scheduler: Resources = Field(default_factory=lambda: {"CPU": 1.0})
    frontend: Resources = Field(default_factory=lambda: {"CPU": 1.0})
    #: By default a CPU or GPU for each of `runner.devices`.
    runner: Resources | None = None


class LogConfig(ConfigModel):
    """What the processes of a cluster log, to standard error. How much is --log-level's."""

    #: text: for people. json: an object a line.
    format: LogFormat = LogFormat.TEXT
    #: A line of level info for each request's end, with its tokens and times.
    requests: Flag = True


def _checked_endpoint(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be of the form http://host:port or https://host:port")
    return url


class TracingConfig(ConfigModel):
    """OpenTelemetry traces of requests; off without an endpoint. Wants the extra `otel`."""

    #: Of a collector, such as http://127.0.0.1:4318; OTEL_EXPORTER_OTLP_ENDPOINT by default.
    otlp_endpoint: Annotated[Name, AfterValidator(_checked_endpoint)] | None = Field(default=None, repr=False)


def _default_data_folder() -> Path:
    """Where the desktop's convention has it. Raises ConfigError."""
    try:
        home = os.environ.get("XDG_DATA_HOME") or Path("~/.local/share").expanduser()
    except RuntimeError as error:
        message = "`data_folder` must be set for a user without a home folder; or set XDG_DATA_HOME"
        raise ConfigError(message, param="data_folder") from error
    return Path(home) / "punica-serve"


class ClusterConfig(ConfigModel):
    """A whole config file. Every process reads the same one and uses its part."""

    engine: EngineConfig
    #: lora_id -> PEFT folder.
    adapters: dict[str, Folder] = Field(default_factory=dict)
    dummy_adapters: DummyAdaptersConfig = DummyAdaptersConfig()
    #: What the processes of this host keep over a restart; ~/.local/share/punica-serve by default.
    data_folder: Folder = Field(default_factory=_default_data_folder)
    registry: RegistryConfig = RegistryConfig()
    store: StoreConfig = StoreConfig()
    #: For `runner.devices: [simulated]` and `punica-serve simulate`.
    simulation: SimulationConfig = SimulationConfig()
    #: Refuse adapters whose base_model_name_or_path differs, where by default it only warns.
    strict_base: Flag = False
    log: LogConfig = LogConfig()
    tracing: TracingConfig = TracingConfig()
    links: LinksConfig = LinksConfig()
    #: Links between processes are in TLS, to wss:// URLs. By default they are not, and want a network that is trusted.
    tls: TlsConfig | None = None
    scheduler: SchedulerConfig = SchedulerConfig()
    runner: RunnerConfig = RunnerConfig()
    frontend: FrontendConfig = FrontendConfig()
    ray: RayConfig = RayConfig()

    def without_auth(self, is_wanted: bool) -> Self:
        """The config, and where ``is_wanted`` with frontends that let everybody in."""
        if not is_wanted:
            return self
        return self.model_copy(update={"frontend": self.frontend.model_copy(update={"insecure_no_auth": True})})

    def with_log_format(self, log_format: LogFormat | None) -> Self:
        """The config, and its logs in this format where one is given."""
        if log_format is None:
            return self
        return self.model_copy(update={"log": self.log.model_copy(update={"format": log_format})})

    @property
    def registry_url(self) -> str:
        """With the password. Raises ConfigError for a password's file that can't be read."""
        return self.registry.url_with_password() or sqlite_url(self.data_folder / "registry.db")

    @property
    def store_url(self) -> str:
        return self.store.url or str(self.data_folder / "store")


def load_config(path: Path) -> ClusterConfig:
    """Reads a config file. Raises ConfigError."""
    document = read_yaml(path, what="config file", example_key="engine")
    return parse_config(document, source=str(path), folder=path.resolve().parent)


def parse_config(document: dict[str, Any], *, source: str, folder: Path) -> ClusterConfig:
    """Checks a config that is already a mapping; ``folder`` is what its relative paths start from.

    ``source`` is named in messages. Raises ConfigError.
    """
    return validated(ClusterConfig, document, source=source, folder=folder)
