"""The command line of a worker, which its runner writes."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from punica_serve.config.engine_section import EngineConfig
from punica_serve.config.runner_section import RunnerConfig
from punica_serve.config.simulation_section import SimulationConfig
from punica_serve.process.logs import LogFormat, LogLevel
from punica_serve.store.packed_folder import PackedCache


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """One worker's device, its place on its runner, and the sections of the config that it reads."""

    engine: EngineConfig
    #: The setting that limits the engine's batch size; "max_batch_size" if `auto` has not chosen it.
    batch_limit: str
    simulation: SimulationConfig
    runner: RunnerConfig
    #: cpu, cuda:0, simulated, or a group such as cuda:0,cuda:1.
    device: str
    runner_id: str
    #: Which of the runner's devices this is.
    index: int
    log_level: LogLevel
    log_format: LogFormat
    #: The host's adapters on disk.
    cache: PackedCache
    otlp_endpoint: str | None
    read_fd: int
    write_fd: int

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> "WorkerOptions":
        """Exits with a message for arguments that no runner writes."""
        parser = argparse.ArgumentParser(prog="punica_runner.worker", description="Started by the runner, not by hand.")
        parser.add_argument("--engine-config", required=True, type=EngineConfig.model_validate_json, help="JSON")
        parser.add_argument("--batch-limit", required=True, help="what its max_batch_size is limited by")
        parser.add_argument("--simulation", required=True, type=SimulationConfig.model_validate_json, help="JSON")
        parser.add_argument("--runner-config", required=True, type=RunnerConfig.model_validate_json, help="JSON")
        parser.add_argument("--device", required=True, help="cpu, cuda:0, simulated, or a group such as cuda:0,cuda:1")
        parser.add_argument("--runner-id", required=True)
        parser.add_argument("--index", required=True, type=int, help="which of the runner's devices this is")
        parser.add_argument("--log-level", required=True, type=LogLevel)
        parser.add_argument("--log-format", required=True, type=LogFormat)
        parser.add_argument("--cache-folder", required=True, type=Path, help="the host's adapters on disk")
        parser.add_argument("--cache-bytes", required=True, type=int, help="all that this folder may take")
        parser.add_argument("--otlp-endpoint")
        parser.add_argument("--read-fd", required=True, type=int)
        parser.add_argument("--write-fd", required=True, type=int)
        options = parser.parse_args(arguments)
        return cls(
            engine=options.engine_config,
            batch_limit=options.batch_limit,
            simulation=options.simulation,
            runner=options.runner_config,
            device=options.device,
            runner_id=options.runner_id,
            index=options.index,
            log_level=options.log_level,
            log_format=options.log_format,
            cache=PackedCache(options.cache_folder, options.cache_bytes),
            otlp_endpoint=options.otlp_endpoint,
            read_fd=options.read_fd,
            write_fd=options.write_fd,
        )
