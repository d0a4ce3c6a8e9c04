"""Checks the adapters of `up --adapter`: a line that asks for one which can't be served starts nothing.

The adapters of a config file are many people's, so one of those that is refused only leaves a warning.
"""

from punica_serve.adapters.early_checks import check_config, check_weights_file
from punica_serve.adapters.folder import CONFIG_NAME, WEIGHTS_NAME
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.cluster import ClusterConfig
from punica_serve.errors import AdapterRejected, ConfigError, InvalidRequest
from punica_serve.registry.names import check_adapter_name


def check_given_adapters(config: ClusterConfig, model: ModelConfig) -> None:
    """Checks names, configurations and the weights' headers. The frontends read the weights themselves.

    Raises ConfigError, with the name and the folder of the first that is wrong.
    """
    for name, folder in config.adapters.items():
        try:
            check_adapter_name(name, base_name=config.engine.served_name)
        except InvalidRequest as error:
            raise ConfigError(f"`--adapter` {name}={folder}: {error.message}", param="adapter") from error
        try:
            check_config(folder, model, config.engine.lora_limits, strict_base=config.strict_base)
            check_weights_file(folder)
        except AdapterRejected as error:
            advice = f"give a PEFT folder for this model, with {CONFIG_NAME} and {WEIGHTS_NAME}, or leave it out"
            raise ConfigError(f"`--adapter` {name}={folder}: {error.message}; {advice}", param="adapter") from error
