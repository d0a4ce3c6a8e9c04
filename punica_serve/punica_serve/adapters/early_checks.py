"""Refuses an adapter for all that is wrong without a look at its weights, so that nobody waits for them in vain."""

from collections.abc import Mapping
from pathlib import Path

from punica_serve.adapters.base_modules import ALONE, WRAPPED
from punica_serve.adapters.file_reading import naming
from punica_serve.adapters.folder import CONFIG_NAME, parse_for_base, read_config, unreadable
from punica_serve.adapters.matching import match_targets
from punica_serve.adapters.peft_config import PeftConfig
from punica_serve.adapters.pool_fit import check_limits
from punica_serve.adapters.targets import base_modules
from punica_serve.base_model.lora_layout import LoraLimits
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import AdapterRejected


def check_config(folder: Path, model: ModelConfig, limits: LoraLimits, *, strict_base: bool) -> None:
    """Checks the configuration in a PEFT folder, whose weights need not be there. Takes milliseconds.

    Where it depends on the weights or on regular expressions, ``read_adapter`` decides. Raises AdapterRejected, which
    names file and field.
    """
    try:
        with naming(folder / CONFIG_NAME):
            config = parse_for_base(read_config(folder), model, strict_base=strict_base)
            modules = "all its modules, or a higher one" if config.rank_pattern else "all its modules"
            check_limits({modules: _lowest_rank(config)}, limits)
            if not config.has_expressions:
                _check_targets(config, model, limits)
    except OSError as error:
        raise unreadable(error) from error


def _lowest_rank(config: PeftConfig) -> int:
    """No module has a lower rank."""
    return min([config.r, *(config.rank_pattern or {}).values()])


def _check_targets(config: PeftConfig, model: ModelConfig, limits: LoraLimits) -> None:
    """The names of tensors tell the text model's path, so a configuration is only refused if it is wrong for each."""
    refusal = None
    for stem in (ALONE, *WRAPPED):
        try:
            return check_limits(_ranks(config, model, stem), limits)
        except AdapterRejected as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal


def _ranks(config: PeftConfig, model: ModelConfig, stem: str) -> Mapping[str, int]:
    """The rank of each module. None of those that a file may lack are there for sure."""
    targets = match_targets(config, base_modules(model, stem)).targets
    return {} if config.may_lack_modules else {target.module: target.rank for target in targets}
