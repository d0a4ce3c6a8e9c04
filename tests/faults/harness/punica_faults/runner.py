"""`punica-serve runner` whose workers a marked request can kill: see ``poison``."""

import argparse
from pathlib import Path

from punica_runner import supervisor
from punica_serve import process
from punica_serve.config import load_config


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--runner-id", required=True)
    parser.add_argument("--scheduler-url", required=True)
    options = parser.parse_args()
    config = load_config(options.config)

    def worker_command(index: int) -> list[str]:
        command = supervisor.engine_worker_command(config, options.runner_id, index)
        return ["punica_faults.poison" if part == "punica_runner.worker" else part for part in command]

    serve = supervisor.serve(
        config,
        process.cluster_token(),
        runner_id=options.runner_id,
        scheduler_url=options.scheduler_url,
        worker_command=worker_command,
    )
    process.run("runner", serve)


if __name__ == "__main__":
    main()
