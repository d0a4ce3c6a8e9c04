"""Schemathesis as a process: requests made from a frontend's own OpenAPI page, and answers held against it."""

import asyncio
import sys
from pathlib import Path

CONFIG = Path(__file__).parent / "schemathesis.toml"
TIMEOUT_S = 540.0
#: Timeout of one answer; a slow answer is no mistake here.
REQUEST_TIMEOUT_S = 120


async def schemathesis(url: str, folder: Path, *options: str) -> tuple[int | None, str]:
    """Exit code and output of the tool against a running frontend. The same requests in every run."""
    command = (sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run")
    fixed = ("--generation-deterministic", "--no-color", "--warnings", "off")
    patience = ("--request-timeout", str(REQUEST_TIMEOUT_S), "--suppress-health-check", "too_slow")
    process = await asyncio.create_subprocess_exec(
        *command,
        f"{url}/openapi.json",
        *fixed,
        *patience,
        *options,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,  # it leaves a folder behind
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    return process.returncode, output.decode()
