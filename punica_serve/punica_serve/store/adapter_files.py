"""The files of an adapter, their size limits, and the digest that names them."""

import re

from punica_serve.adapters.folder import CONFIG_NAME, WEIGHTS_NAME
from punica_serve.errors import TooLarge

#: The files of an adapter that are stored. The configuration is written last: where it exists, so do the weights.
STORED_FILES = (WEIGHTS_NAME, CONFIG_NAME)

#: The adapter's own chat template, as transformers saves it with the tokenizer: in a file, or as a JSON field.
TEMPLATE_NAME = "chat_template.jinja"
TOKENIZER_NAME = "tokenizer_config.json"

#: All files that are read from what an owner provides.
ADAPTER_FILES = (CONFIG_NAME, WEIGHTS_NAME, TEMPLATE_NAME, TOKENIZER_NAME)

#: Limit for all files except the weights. A configuration that names every module of a large model needs a tenth of it.
MAX_CONFIG_BYTES = 1 << 20

_DIGEST = re.compile(r"[0-9a-f]{64}")


def is_digest(name: str) -> bool:
    """Whether ``name`` is a valid digest, and thus safe as a folder's name."""
    return _DIGEST.fullmatch(name) is not None


def max_bytes_of(name: str, max_adapter_bytes: int) -> int:
    """Size limit of an adapter's file."""
    return max_adapter_bytes if name == WEIGHTS_NAME else min(MAX_CONFIG_BYTES, max_adapter_bytes)


def check_file_size(name: str, num_bytes: int, max_bytes: int) -> None:
    """Raises TooLarge."""
    limit_bytes = max_bytes_of(name, max_bytes)
    if num_bytes > limit_bytes:
        raise TooLarge(f"`{name}` is larger than {limit_bytes} bytes, the limit", param=name)
