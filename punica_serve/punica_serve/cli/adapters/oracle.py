"""The models of transformers and PEFT that answers are compared with."""

import os
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel
from transformers.utils import logging as transformers_logging

from punica_serve.adapters.base_modules import ALONE, WRAPPED
from punica_serve.adapters.folder import WEIGHTS_NAME
from punica_serve.adapters.safetensors_file import list_tensors, read_header
from punica_serve.adapters.text_tensors import text_tensors
from punica_serve.errors import ConfigError
from punica_serve.errors.plain_files import open_plain

#: Other implementations leave out Gemma 2's soft cap.
_ATTENTION = "eager"


def load_base(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model of a folder, without the parts that only images pass."""
    model = _load(folder, dtype)
    text = model.config.get_text_config()
    if text is model.config:
        return model
    with torch.device("meta"):
        alone: PreTrainedModel = AutoModelForCausalLM.from_config(text, dtype=dtype, attn_implementation=_ATTENTION)
    alone.model, alone.lm_head = model.model.language_model, model.lm_head
    return alone.eval()


def load_with_adapter(folder: Path, adapter: Path) -> PeftModel:
    """The model that an adapter was trained on, in float32: a text model, or one that also sees images.

    Raises ConfigError for an adapter of an older transformers, whose paths this one's PEFT does not find.
    """
    stem = _stem_of(adapter)
    if stem not in (ALONE, WRAPPED[0]):
        message = f"{adapter} names its tensors `{stem}...`, as older versions of transformers did"
        raise ConfigError(f"{message}; it can be served, but this version's PEFT would not apply it: compare it there")
    base = load_base(folder, torch.float32) if stem == ALONE else _load(folder, torch.float32)
    return PeftModel.from_pretrained(base, adapter).eval()


def _load(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    transformers_logging.disable_progress_bar()
    config = AutoConfig.from_pretrained(folder)
    kind = AutoModelForCausalLM if config.get_text_config() is config else AutoModelForImageTextToText
    model: PreTrainedModel = kind.from_pretrained(folder, dtype=dtype, attn_implementation=_ATTENTION)
    return model.eval()


def _stem_of(adapter: Path) -> str:
    """The path of the text model in the model that an adapter was trained on."""
    with open_plain(adapter / WEIGHTS_NAME) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        return text_tensors(list_tensors(read_header(file, num_bytes), num_bytes)).stem
