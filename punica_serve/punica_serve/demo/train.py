"""Trains the demo: `python -m punica_serve.demo.train [--out DIR]`. Takes minutes on two cores; nothing is downloaded.

The base learns to count on from a plain integer, and to write it in every notation after the notation's tag. So an
adapter only has to learn to answer a plain prompt as the base answers a tagged one. At the end, transformers and PEFT
read the written folders and answer all integers; exit code 1 if too few answers are exact.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from peft import LoraConfig, get_peft_model
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from tokenizers import Tokenizer
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from punica_serve.demo.exactness import Exactness, load_demo, measure
from punica_serve.demo.examples import Batch, Example, answers, batches, long_counts
from punica_serve.demo.fitting import Source, adapter_optimizers, base_optimizers, fit
from punica_serve.demo.notations import NOTATIONS, NUM_INTEGERS, REQUIRED_SHARE
from punica_serve.demo.saving import save_adapter, save_base
from punica_serve.demo.tokenizer import EOS, PAD, build_tokenizer

_SEED = 42
_NUM_THREADS = 1
_BASE_STEPS = 640
_LONG_FROM_STEP = 500

_ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
_MLP = ["gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one adapter differs from the others."""

    rank: int
    alpha: int
    target_modules: list[str]
    num_steps: int
    use_rslora: bool = False
    rank_pattern: dict[str, int] = field(default_factory=dict)
    alpha_pattern: dict[str, int] = field(default_factory=dict)


#: As different as the demo's batches should be: ranks from 4 to 64, modules, scalings and patterns.
RECIPES = {
    "roman": Recipe(rank=8, alpha=16, target_modules=["q_proj", "v_proj"], num_steps=350),
    "english": Recipe(
        rank=16,
        alpha=32,
        target_modules=_ATTENTION + _MLP,
        num_steps=180,
        rank_pattern={"down_proj": 24},
        alpha_pattern={"down_proj": 36},
    ),
    "french": Recipe(rank=32, alpha=12, target_modules=_ATTENTION, num_steps=180, use_rslora=True),
    "binary": Recipe(rank=64, alpha=64, target_modules=_ATTENTION + _MLP, num_steps=300),
    "hex": Recipe(rank=4, alpha=16, target_modules=_MLP, num_steps=500),
}


def train(
    out: Annotated[Path, typer.Option(help="Folder for model/ and adapters/.")] = Path(__file__).parent,
) -> None:
    """Trains the demo's base model and adapters, and checks them."""
    torch.set_num_threads(_NUM_THREADS)
    torch.manual_seed(_SEED)
    transformers_logging.disable_progress_bar()
    console = Console()
    tokenizer = build_tokenizer()
    with _progress(console) as progress:
        base = _train_base(tokenizer, progress)
        save_base(base, tokenizer, out / "model")
        for lora_id in NOTATIONS:
            save_adapter(_train_adapter(lora_id, tokenizer, out, progress), out / "adapters" / lora_id)
        results = _measure_all(tokenizer, out, progress)
    console.print(_table(results))
    if any(len(result.wrong) > (1 - REQUIRED_SHARE) * result.num_prompts for result in results.values()):
        raise typer.Exit(code=1)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:>12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
    )


def _fit(
    model: nn.Module,
    sources: list[Source],
    optimizers: list[torch.optim.Optimizer],
    num_steps: int,
    progress: Progress,
    name: str,
) -> None:
    task = progress.add_task(name, total=num_steps, note="")
    fit(model, sources, optimizers, num_steps, lambda loss: progress.update(task, advance=1, note=f"loss {loss:.4f}"))


def _train_base(tokenizer: Tokenizer, progress: Progress) -> LlamaForCausalLM:
    model = LlamaForCausalLM(_base_config(tokenizer))
    words = _practice(tokenizer, [None, "roman", "english", "french"], tagged=True)
    digits = _practice(tokenizer, ["binary", "hex"], tagged=True)
    sources = [
        Source(_batches(words, batch_size=96)),
        Source(_batches(digits, batch_size=128)),
        # Counting is learned on short streams; the long ones come late, only to extend it.
        Source(_batches(long_counts(tokenizer, 256), batch_size=4)),
        Source(_batches(long_counts(tokenizer, 1024), batch_size=2), first_step=_LONG_FROM_STEP),
    ]
    _fit(model, sources, base_optimizers(model), _BASE_STEPS, progress, "base")
    return model


def _base_config(tokenizer: Tokenizer) -> LlamaConfig:
    """0.6 million parameters. Heads are 64 wide, more than hidden_size / heads, as GPU attention requires."""
    return LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=2048,
        initializer_range=0.05,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(EOS),
        pad_token_id=tokenizer.token_to_id(PAD),
    )


def _practice(tokenizer: Tokenizer, lora_ids: list[str | None], *, tagged: bool) -> list[Example]:
    """All answers, with those to integers below a hundred three times: they are few and unlike the rest."""
    every = [answers(tokenizer, lora_id, tagged=tagged) for lora_id in lora_ids]
    return [example for examples in every for example in examples + 2 * examples[:100]]


def _train_adapter(lora_id: str, tokenizer: Tokenizer, out: Path, progress: Progress) -> Any:
    recipe = RECIPES[lora_id]
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        target_modules=recipe.target_modules,
        use_rslora=recipe.use_rslora,
        rank_pattern=recipe.rank_pattern,
        alpha_pattern=recipe.alpha_pattern,
    )
    model = get_peft_model(load_demo(out, None), config)
    sources = [Source(_batches(_practice(tokenizer, [lora_id], tagged=False), batch_size=100))]
    _fit(model, sources, adapter_optimizers(model), recipe.num_steps, progress, lora_id)
    return model


def _batches(examples: list[Example], batch_size: int) -> Iterator[Batch]:
    return batches(examples, batch_size, torch.Generator().manual_seed(_SEED))


def _measure_all(tokenizer: Tokenizer, out: Path, progress: Progress) -> dict[str | None, Exactness]:
    names = [None, *NOTATIONS]
    task = progress.add_task("check", total=len(names), note="")
    results: dict[str | None, Exactness] = {}
    for lora_id in names:
        results[lora_id] = measure(load_demo(out, lora_id), tokenizer, lora_id, range(NUM_INTEGERS))
        progress.update(task, advance=1)
    return results


def _table(results: dict[str | None, Exactness]) -> Table:
    table = Table("adapter", "exact", "smallest margin", "wrong")
    for lora_id, result in results.items():
        exact = f"{result.num_prompts - len(result.wrong)} of {result.num_prompts}"
        table.add_row(lora_id or "(base)", exact, f"{result.smallest_margin:.2f}", " ".join(map(str, result.wrong[:8])))
    return table


if __name__ == "__main__":
    typer.run(train)
