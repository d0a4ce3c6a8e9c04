"""guidellm measures an adapter, by the demo's own tokenizer: python ask_guidellm.py URL KEY FOLDER."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

URL, KEY, FOLDER = sys.argv[1:]
TOKENIZER = Path(__file__).parents[4] / "punica_serve" / "punica_serve" / "demo" / "model"
ROUTES = ("/v1/completions", "/v1/chat/completions")


def measured(route: str) -> dict[str, Any]:
    """The metrics of twenty requests, four at a time."""
    report = Path(FOLDER, "report.json")
    command = [sys.executable, "-m", "guidellm", "run", "--disable-console"]
    command += ["--backend", f"kind=openai_http,target={URL},api_key={KEY},model=roman,request_format={route}"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}"]
    command += ["--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=16"]
    command += ["--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=20"]
    command += ["--output", f"kind=json,path={report}"]
    subprocess.run(command, check=True, stdout=sys.stderr, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    metrics: dict[str, Any] = json.loads(report.read_text())["benchmarks"][0]["metrics"]
    return metrics


metrics = {route: measured(route) for route in ROUTES}
print(
    json.dumps(
        {
            "version": importlib.metadata.version("guidellm"),
            "requests": {route: metrics[route]["request_totals"] for route in ROUTES},
            "output_tokens": {route: metrics[route]["output_token_count"]["successful"]["mean"] for route in ROUTES},
        }
    )
)
