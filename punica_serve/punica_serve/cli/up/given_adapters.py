"""Checks the adapters of `up --adapter`: a line that asks for one which can't be served starts nothing.

The adapters of a config file are many people's, so one of those that is refused only leaves a warning.
"""

from punica_serve.adapters.folder import CONFIG_NAME, WEIGHTS_NAME
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.cluster import ClusterConfig
from punica_serve.errors import AdapterRejected, ConfigError, InvalidRequest, StoreUnavailable
from punica_serve.registry.checked_adapters import CheckedAdapter, CheckedAdapters, files_state
from punica_serve.registry.config_adapters import read_shared, shape_of


def check_given_adapters(config: ClusterConfig, model: ModelConfig) -> CheckedAdapters:
    """Checks all that the frontends and ``LLM`` check, the weights' values too, and logs what they would warn of.

    Blocks while it reads their files. Returns what the frontends need not read again. Raises ConfigError, with the name
    and the folder of the first that is wrong.
    """
    found: dict[str, CheckedAdapter] = {}
    for name, folder in config.adapters.items():
        files = files_state(folder)
        try:
            ref = read_shared(name, config, model).ref
        except (InvalidRequest, StoreUnavailable) as error:
            raise ConfigError(f"`--adapter` {name}={folder}: {error.message}", param="adapter") from error
        except AdapterRejected as error:
            advice = f"give a PEFT folder for this model, with {CONFIG_NAME} and {WEIGHTS_NAME}, or leave it out"
            raise ConfigError(f"`--adapter` {name}={folder}: {error.message}; {advice}", param="adapter") from error
        if files is not None:
            found[str(folder)] = CheckedAdapter(files, ref)
    return CheckedAdapters(shape_of(model), found)
