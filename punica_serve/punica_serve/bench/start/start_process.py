"""A process of `bench start`: starts an engine as a script does, and prints where the seconds went.

python -m punica_serve.bench.start.start_process ENGINE_CONFIG DEVICE STARTED_S, started by ``start_run``
"""

import json
import sys
import time

from punica_serve.base_model.model_config import read_model_config
from punica_serve.config.engine_section import EngineConfig
from punica_serve.offline.engine_start import start_engine


def main(engine_config: str, device: str, started_s: str) -> None:
    """Writes {"total_s": seconds since ``started_s``, "phases": {name: seconds}} as its last line.

    ``started_s``: when the process was started, by the monotonic clock, which all processes of a host share.
    """
    config = EngineConfig.model_validate_json(engine_config)
    engine = start_engine(config, read_model_config(config.model), device)
    phases = {name: seconds for name, (seconds, _) in engine.start_times.phases.items()}
    sys.stdout.write(json.dumps({"total_s": time.monotonic() - float(started_s), "phases": phases}) + "\n")
    sys.stdout.flush()
    engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
