"""Compares a downloaded checkpoint's log-probabilities in this engine with those of transformers.

    .venv/bin/python -m pip install --constraint constraints.txt --editable '.[parity]'
    .venv/bin/python examples/check_checkpoint.py /models/Qwen2.5-7B-Instruct
    .venv/bin/python examples/check_checkpoint.py /models/Qwen2.5-7B-Instruct --device cuda:0 --dtype bfloat16

The engine answers a few prompts greedily, then transformers scores the answers: one after the other, so that one model
is in memory at a time. In float32 they agree within 1e-3; exit code 1 means that they don't. In half precision both
round differently, so no limit is known: compare with another model whose answers you trust, or use float32.
"""

import argparse
import sys
from pathlib import Path

from punica_serve.errors import PunicaError
from punica_serve.process.run import missing_package

#: Room for the prompts; the rest of the memory is the model's.
_NUM_KV_PAGES = 64


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a model folder in Hugging Face's format")
    parser.add_argument("--device", default="cpu", help="cpu, or a GPU such as cuda:0")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    try:
        return _compare(parser.parse_args())
    except PunicaError as error:
        print(error, file=sys.stderr)
    except ModuleNotFoundError as error:
        if (told := missing_package(error)) is None:
            raise
        print(told, file=sys.stderr)
    return 2


def _compare(options: argparse.Namespace) -> int:
    from rich.console import Console

    from punica_serve.cli.adapters.parity import TOLERANCE, compare_base, engine_answers, parity_table
    from punica_serve.config.engine_section import EngineConfig

    small = {"num_kv_pages": _NUM_KV_PAGES, "num_lora_pages": 1, "host_cache_bytes": 0, "max_batch_size": 4}
    config = EngineConfig(model=options.folder, cuda_graphs=False, **small)
    answers = engine_answers(config, None, dtype=options.dtype, device=options.device)
    rows = compare_base(answers, config.model, dtype=options.dtype, device=options.device)
    Console(highlight=False).print(parity_table(rows))
    # A difference that is NaN is beyond the tolerance.
    return int(options.dtype == "float32" and not all(row.difference <= TOLERANCE for row in rows))


if __name__ == "__main__":
    sys.exit(main())
