"""`punica-serve runner` whose workers a marked request can kill (see ``poison``) and restart sooner."""

import argparse
from pathlib import Path

from punica_runner import supervisor
from punica_serve.config.cluster import load_config
from punica_serve.process import run

RESTART_BACKOFF_S, RESTART_BACKOFF_MAX_S = 0.1, 1.0


def main() -> None:
    supervisor.RESTART_BACKOFF_S, supervisor.RESTART_BACKOFF_MAX_S = RESTART_BACKOFF_S, RESTART_BACKOFF_MAX_S
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
        run.cluster_token(),
        runner_id=options.runner_id,
        scheduler_url=options.scheduler_url,
        worker_command=worker_command,
    )
    run.run_process("runner", serve)


if __name__ == "__main__":
    main()
