"""Writes the trained demo as Hugging Face and PEFT folders, with nothing in them of the machine that trained it."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from punica_serve.demo.tokenizer import CHAT_TEMPLATE, EOS, PAD

#: The adapters' name for their base model.
BASE_NAME = "numbers"


def save_base(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """config.json, generation_config.json, model.safetensors and the tokenizer's two files."""
    model.generation_config.do_sample = False
    model.save_pretrained(folder)
    _edit_json(folder / "config.json", {"_name_or_path": BASE_NAME})
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        model_max_length=model.config.max_position_embeddings,
        clean_up_tokenization_spaces=False,
    )
    wrapped.save_pretrained(folder, save_jinja_files=False)
    # The name that older versions of transformers also know.
    _edit_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    _share(folder / "model.safetensors")


def save_adapter(model: Any, folder: Path) -> None:
    """adapter_config.json and adapter_model.safetensors, without the model card that PEFT adds."""
    config = model.peft_config["default"]
    config.base_model_name_or_path = BASE_NAME
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    # PEFT holds the modules in a set, whose order changes from run to run.
    _edit_json(folder / "adapter_config.json", {"target_modules": sorted(config.target_modules)})
    _share(folder / "adapter_model.safetensors")


def _share(path: Path) -> None:
    """Makes weights readable for all: they are written for their owner only, and wheels and images would keep that."""
    path.chmod(0o644)


def _edit_json(path: Path, changes: dict[str, Any]) -> None:
    document = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", encoding="utf-8")
