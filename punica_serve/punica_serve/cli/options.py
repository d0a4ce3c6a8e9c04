"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from punica_serve.errors import ConfigError
from punica_serve.logs import LogFormat, LogLevel

DEFAULT_CONFIG = Path("configs/demo.yaml")


def check_config_file(file: Path) -> Path:
    """Whoever named none may not know which it is. Raises ConfigError where the default isn't there."""
    if file == DEFAULT_CONFIG and not file.exists():
        message = f"config file {file.absolute()}, which is `--config`'s default, isn't there"
        raise ConfigError(f"{message}; name yours with `--config FILE`", param="config")
    return file


ConfigOption = Annotated[
    Path, typer.Option("--config", metavar="FILE", callback=check_config_file, help="The cluster's config file.")
]
HostOption = Annotated[str | None, typer.Option(help="Address to listen on, instead of the config's.")]
PortOption = Annotated[int | None, typer.Option(min=0, max=65535, help="Port, instead of the config's; 0: a free one.")]
LogLevelOption = Annotated[LogLevel, typer.Option(help="The least level that is logged.")]
LogFormatOption = Annotated[LogFormat | None, typer.Option(help="Of log lines, instead of the config's.")]
NoAuthOption = Annotated[
    bool,
    typer.Option("--insecure-no-auth", help="Let everybody in as an administrator, from wherever it can be reached."),
]


def check_key(key: str | None) -> str | None:
    """Before an HTTP client shows it in what it says of it. Raises ConfigError for what no header can carry."""
    if key is not None and not (key.isascii() and key.isprintable()):
        message = "the API key (`--key`, PUNICA_API_KEY) holds a character that no key has; see how it was copied"
        raise ConfigError(message, param="key")
    return key


def check_text(text: str | None) -> str | None:
    """Before it goes into JSON or a URL. Raises ConfigError for bytes that the shell gave and that no text has."""
    try:
        (text or "").encode()
    except UnicodeEncodeError as error:
        raise ConfigError("an argument is no text in UTF-8; see how it was typed or copied") from error
    return text


KeyOption = Annotated[
    str | None,
    typer.Option(envvar="PUNICA_API_KEY", callback=check_key, help="Your API key, where keys are asked for."),
]
UrlOption = Annotated[str, typer.Option(envvar="PUNICA_URL", help="A frontend of the cluster.")]
DEFAULT_URL = "http://127.0.0.1:8000"
SchedulerUrlOption = Annotated[
    str | None, typer.Option(metavar="URL", help="The scheduler's, if not the config's; @FILE: what the file says.")
]
