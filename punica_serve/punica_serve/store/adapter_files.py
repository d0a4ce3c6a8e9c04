"""Which files make an adapter, how large they may be, and the digest that names them."""

import re

from punica_serve.adapters.folder import CONFIG_NAME, WEIGHTS_NAME

#: Everything of an adapter that is stored. The configuration comes last: where it is, the weights are.
STORED_FILES = (WEIGHTS_NAME, CONFIG_NAME)

#: The adapter's own chat template, as transformers saves it with the tokenizer: by itself, or as a field.
TEMPLATE_NAME = "chat_template.jinja"
TOKENIZER_NAME = "tokenizer_config.json"

#: What PEFT wrote before it knew safetensors.
PICKLE_NAME = "adapter_model.bin"

#: Everything that is read of what its owner gives.
ADAPTER_FILES = (CONFIG_NAME, WEIGHTS_NAME, TEMPLATE_NAME, TOKENIZER_NAME)

#: Of all files but the weights: a configuration that names every module of a large model takes a tenth of it.
MAX_CONFIG_BYTES = 1 << 20

_DIGEST = re.compile(r"[0-9a-f]{64}")


def is_digest(name: str) -> bool:
    """Whether a store may use ``name`` as the name of a folder."""
    return _DIGEST.fullmatch(name) is not None


def max_bytes_of(name: str, max_adapter_bytes: int) -> int:
    """How large a file of an adapter may be."""
    return max_adapter_bytes if name == WEIGHTS_NAME else min(MAX_CONFIG_BYTES, max_adapter_bytes)
