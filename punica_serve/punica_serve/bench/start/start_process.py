"""A process of `bench start`: starts an engine as a worker does, and prints where it is and where the seconds went.

python -m punica_serve.bench.start.start_process ENGINE_CONFIG DEVICE STARTED_S, started by ``start_run``
"""

import json
import os
import sys
import time
from collections.abc import Mapping

from punica_serve.engine.ranks.early_ranks import EarlyRanks, start_early


def main(engine_config: str, device: str, started_s: str) -> None:
    """Writes each phase that a rank begins, in a line, and the seconds of all as the last: see ``started_engine``.

    ``started_s``: when the process was started, by the monotonic clock, which all processes of a host share.
    """
    _start(engine_config, device, float(started_s), start_early(device))


def _start(engine_config: str, device: str, started_s: float, early: EarlyRanks | None) -> None:
    # Imported here, because ranks are started before all that takes time.
    from punica_serve.base_model.config_json import read_model_config
    from punica_serve.config.engine_section import EngineConfig
    from punica_serve.offline.engine_start import start_engine

    config = EngineConfig.model_validate_json(engine_config)
    engine = start_engine(config, read_model_config(config.model), device, early, _say_phase)
    by_rank = engine.start_times.by_rank
    _write({"total_s": time.monotonic() - started_s, "by_rank": by_rank})
    engine.close()


def _say_phase(rank: int, name: str) -> None:
    _write({"rank": rank, "phase": name})


def _write(told: Mapping[str, object]) -> None:
    """In one call, since the phases of other ranks are told on another thread."""
    os.write(sys.stdout.fileno(), f"{json.dumps(told)}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
