"""Measures how well the trained folders answer under transformers and PEFT, which proves that training worked."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from punica_serve.demo.notations import expected

#: More than the longest answer of any notation.
MAX_ANSWER_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Exactness:
    """The results of greedy decoding."""

    num_prompts: int
    wrong: list[int]
    #: Smallest lead of a chosen token's logit over the second best: how far rounding is from changing an answer.
    smallest_margin: float


def load_demo(folder: Path, lora_id: str | None) -> Any:
    """The saved base model, or one of its adapters on it, as loaded by transformers and PEFT."""
    model: Any = LlamaForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    return model if lora_id is None else PeftModel.from_pretrained(model, folder / "adapters" / lora_id)


def measure(model: Any, tokenizer: Tokenizer, lora_id: str | None, integers: Iterable[int]) -> Exactness:
    """Decodes greedily, prompts of one length at a time so that none is padded."""
    ordered = sorted(integers)
    wrong: list[int] = []
    margins: list[float] = []
    for _, group in groupby(ordered, key=lambda n: len(str(n))):
        same_length = list(group)
        texts, margin = _generate(model, tokenizer, same_length)
        wrong += [n for n, text in zip(same_length, texts, strict=True) if text != expected(lora_id, n)]
        margins.append(margin)
    return Exactness(len(ordered), wrong, min(margins))


@torch.inference_mode()
def _generate(model: Any, tokenizer: Tokenizer, integers: list[int]) -> tuple[list[str], float]:
    prompts = torch.tensor([tokenizer.encode(str(n)).ids for n in integers])
    output = model.generate(
        input_ids=prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=False,
        max_new_tokens=MAX_ANSWER_TOKENS,
        output_logits=True,
        return_dict_in_generate=True,
    )
    answers = output.sequences[:, prompts.shape[1] :]
    best_two = torch.stack(output.logits, dim=1).topk(2, dim=-1).values
    drawn = answers != model.generation_config.pad_token_id
    margin = (best_two[..., 0] - best_two[..., 1])[drawn].min().item()
    return tokenizer.decode_batch(answers.tolist()), margin
