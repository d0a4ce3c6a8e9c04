"""A cluster that wants keys, for the clients that others wrote."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parents[1] / "e2e" / "clients" / "scripts"
#: Time limit for a script: far more than any takes.
SCRIPT_TIMEOUT_S = 180


@dataclass(frozen=True)
class KeyedCluster:
    """A frontend's address, and a user's key for it."""

    url: str
    key: str

    def run(self, script: str, python: Path, *arguments: str) -> dict[str, Any]:
        """Runs a script of SCRIPTS against it, which must exit with 0; returns what it prints, a JSON object."""
        environment = os.environ | {"NO_PROXY": "*", "no_proxy": "*"}
        command = [str(python), str(SCRIPTS / script), self.url, self.key, *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SCRIPT_TIMEOUT_S, env=environment)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        told: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
        return told
