"""The check of configurations that sources of adapters for the tiny model are given."""

from functools import partial

from punica_serve.adapters.early_checks import check_config
from punica_serve.base_model.lora_layout import USUAL_LIMITS
from tiny_config import tiny_config

check_for_tiny = partial(check_config, model=tiny_config(), limits=USUAL_LIMITS, strict_base=False)
