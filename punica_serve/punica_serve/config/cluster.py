"""The configuration of a cluster: one YAML file, read once at startup into frozen models.

``load_config(path)`` reads a file, ``parse_config`` checks a program's own settings. Folders in a file are relative to
the file. ``demo:NAME`` is a folder of the demo model that ships with the package; ``shape:NAME`` is a well-known
model's shape, without weights. Every mistake is a ConfigError that names the file, the key and the fix.
"""

import os
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from punica_serve.config.dummy_adapters_section import DummyAdaptersConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.config.fields import ConfigModel, Flag, Folder
from punica_serve.config.frontend_section import FrontendConfig
from punica_serve.config.links_section import LinksConfig
from punica_serve.config.log_section import LogConfig
from punica_serve.config.ray_section import RayConfig
from punica_serve.config.registry_section import RegistryConfig, sqlite_url
from punica_serve.config.runner_section import RunnerConfig
from punica_serve.config.scheduler_section import SchedulerConfig
from punica_serve.config.simulation_section import SimulationConfig
from punica_serve.config.store_section import StoreConfig
from punica_serve.config.tls_section import TlsConfig
from punica_serve.config.tracing_section import TracingConfig
from punica_serve.config.yaml_file import read_yaml, validated
from punica_serve.errors import ConfigError
from punica_serve.process.logs import LogFormat


def _default_data_folder() -> Path:
    """The data folder by the XDG convention, by which relative folders count as not set. Raises ConfigError."""
    if (home := Path(os.environ.get("XDG_DATA_HOME", ""))).is_absolute():
        return home / "punica-serve"
    try:
        return Path("~/.local/share/punica-serve").expanduser()
    except RuntimeError as error:
        message = "`data_folder` is not set and the user has no home folder; set `data_folder` or XDG_DATA_HOME"
        raise ConfigError(message, param="data_folder") from error


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

    @model_validator(mode="after")
    def _hosts_leave_sums_to_the_library(self) -> Self:
        hosts, exchange = self.runner.hosts, self.engine.exchange
        if hosts > 1 and exchange in ("fused", "flashinfer"):
            raise ValueError(
                f"`runner.hosts` is {hosts} and `engine.exchange` is {exchange}, whose kernel maps memory of all GPUs"
                " of one host; set it to auto or nccl"
            )
        return self

    def without_auth(self, is_wanted: bool) -> Self:
        """Returns this config; if ``is_wanted``, with frontends that need no authentication."""
        if not is_wanted:
            return self
        return self.model_copy(update={"frontend": self.frontend.model_copy(update={"insecure_no_auth": True})})

    def with_log_format(self, log_format: LogFormat | None) -> Self:
        """Returns this config, with this log format if one is given."""
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

    @property
    def store_folder(self) -> Path | None:
        """The store's folder; None for a URL."""
        return None if "://" in self.store_url else Path(self.store_url)


def load_config(path: Path) -> ClusterConfig:
    """Reads a config file. Raises ConfigError."""
    document = read_yaml(path, what="config file", example_key="engine")
    return parse_config(document, source=str(path), folder=path.resolve().parent)


def parse_config(document: dict[str, Any], *, source: str, folder: Path) -> ClusterConfig:
    """Checks a config given as a mapping. Relative paths start from ``folder``.

    Messages name ``source``. Raises ConfigError.
    """
    return validated(ClusterConfig, document, source=source, folder=folder)
