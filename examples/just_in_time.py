"""Just-in-time fine-tuning: train a LoRA model on a few lines of text, upload it, and stream its first token.

    make run                                        # in another terminal: the demo cluster
    .venv/bin/python -m pip install --constraint constraints.txt --editable '.[parity]'    # PEFT and transformers
    .venv/bin/python examples/just_in_time.py

The lines teach the demo model to count in German. Nothing is restarted: the cluster does not know the adapter before
the upload, and answers with it a moment later.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import torch
from torch.nn.utils.rnn import pad_sequence

import punica_serve

try:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging
except ModuleNotFoundError as missing:
    install = "-m pip install --constraint constraints.txt --editable '.[parity]'"
    raise SystemExit(f"{missing.name} is not installed, which trains the adapter; {sys.executable} {install}") from None

LINES = """
1 eins, 2 zwei, 3 drei, 4 vier, 5 fuenf, 6 sechs, 7 sieben, 8 acht, 9 neun, 10 zehn, 11 elf, 12 zwoelf
"""
EXAMPLES = [(prompt, answer) for prompt, answer in (line.split() for line in LINES.strip().split(","))]
DEMO_MODEL = Path(punica_serve.__file__).parent / "demo" / "model"
NUM_STEPS = 120


# Hide transformers' own output.
transformers_logging.disable_progress_bar()
warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    url = os.environ.get("PUNICA_URL", "http://127.0.0.1:8000")
    parser.add_argument("--url", default=url, help="a frontend of the cluster; by default PUNICA_URL")
    key = os.environ.get("PUNICA_API_KEY")
    parser.add_argument("--key", default=key, help="an API key, if the cluster requires one; by default PUNICA_API_KEY")
    parser.add_argument("--name", default="german", help="name for the adapter")
    parser.add_argument("--prompt", default="7", help="prompt to answer with the adapter")
    options = parser.parse_args()
    headers = {"Authorization": f"Bearer {options.key}"} if options.key else {}
    with (
        tempfile.TemporaryDirectory() as folder,
        httpx.Client(base_url=options.url, headers=headers, timeout=30.0, trust_env=False) as client,
    ):
        look_for_cluster(client)
        say(f"training on {len(EXAMPLES)} lines: seconds on an idle machine, more than a minute on a busy one")
        trained_s = train(Path(folder))
        say(f"trained on {len(EXAMPLES)} lines in {trained_s:.1f} s")
        started_s = time.monotonic()
        upload(client, options.name, Path(folder))
        say(f"uploaded as {options.name!r} after {time.monotonic() - started_s:.3f} s")
        for number, piece in enumerate(stream(client, options.name, options.prompt)):
            if number == 0:
                say(f"first token {time.monotonic() - started_s:.3f} s after the upload began")
            say(piece, end="")
        say("")


def look_for_cluster(client: httpx.Client) -> None:
    """Exits before the training if no cluster answers."""
    try:
        checked(client.get("/ready"))
    except httpx.TransportError as error:
        raise SystemExit(
            f"no cluster answers at {client.base_url} ({error}): start one with `make run`, or give a URL with --url"
        ) from None


def train(folder: Path) -> float:
    """Trains an adapter of rank 16 on the lines and saves it in ``folder`` with PEFT. Returns the seconds it took."""
    started_s = time.monotonic()
    torch.manual_seed(0)
    tokenizer: Any = AutoTokenizer.from_pretrained(DEMO_MODEL)
    base: Any = AutoModelForCausalLM.from_pretrained(DEMO_MODEL)
    model: Any = get_peft_model(base, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
    input_ids, labels = batch(tokenizer)
    optimizer = torch.optim.AdamW((weight for weight in model.parameters() if weight.requires_grad), lr=5e-3)
    for _ in range(NUM_STEPS):
        model(input_ids=input_ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return time.monotonic() - started_s


def batch(tokenizer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """All lines in one batch: token ids, and labels that exclude the prompts and the padding."""
    rows, labels = [], []
    for prompt, answer in EXAMPLES:
        prompt_ids = tokenizer(prompt)["input_ids"]
        answer_ids = tokenizer(answer + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
        rows.append(torch.tensor(prompt_ids + answer_ids))
        labels.append(torch.tensor([-100] * len(prompt_ids) + answer_ids))
    padded = pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id)
    return padded, pad_sequence(labels, batch_first=True, padding_value=-100)


def upload(client: httpx.Client, name: str, folder: Path) -> None:
    """Uploads the two files of an adapter under a name; an existing name gets a new version."""
    names = ("adapter_config.json", "adapter_model.safetensors")
    files = {file: (file, (folder / file).read_bytes()) for file in names}
    checked(client.post("/v1/adapters", params={"name": name}, files=files))


def stream(client: httpx.Client, name: str, prompt: str) -> Iterator[str]:
    """Yields pieces of the answer as they are generated."""
    body = {"prompt": prompt, "lora_id": name, "temperature": 0.0, "max_tokens": 32, "stream": True}
    with client.stream("POST", "/v1/generate", json=body) as response:
        if response.is_error:
            response.read()
        for line in checked(response).iter_lines():
            data = line.removeprefix("data: ")
            if data and data != "[DONE]":
                yield json.loads(data)["text"]


def checked(response: httpx.Response) -> httpx.Response:
    """Exits with the server's message if it refused."""
    if response.is_error:
        raise SystemExit(response.json()["error"]["message"])
    return response


def say(text: str, end: str = "\n") -> None:
    print(text, end=end, flush=True)


if __name__ == "__main__":
    main()
