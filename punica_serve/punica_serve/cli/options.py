"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from punica_serve.cli.shipped_configs import find_config
from punica_serve.errors import ConfigError
from punica_serve.process.logs import LogFormat, LogLevel

#: A shipped config.
DEFAULT_CONFIG = Path("demo")


ConfigOption = Annotated[
    Path,
    typer.Option(
        "--config", metavar="FILE", callback=find_config, help="The cluster's config file, or a shipped one's name."
    ),
]
HostOption = Annotated[str | None, typer.Option(help="Address to listen on instead of the config's.")]
PortOption = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port instead of the config's; 0 picks a free one.")
]
LogLevelOption = Annotated[LogLevel, typer.Option(help="Lowest level that is logged.")]
LogFormatOption = Annotated[LogFormat | None, typer.Option(help="Format of log lines instead of the config's.")]
NoAuthOption = Annotated[
    bool,
    typer.Option("--insecure-no-auth", help="Treat everybody who can reach it as an administrator."),
]

Force = Annotated[bool, typer.Option("--force", help="Proceed even if no valid admin key is left.")]


def check_key(key: str | None) -> str | None:
    """Checks a key before an HTTP client prints it in an error. Raises ConfigError if no header can carry it."""
    if key is not None and not (key.isascii() and key.isprintable()):
        message = (
            "the API key (`--key`, PUNICA_API_KEY) holds a character that keys never have; check how it was copied"
        )
        raise ConfigError(message, param="key")
    return key


def check_text(text: str | None) -> str | None:
    """Checks an argument before it goes into JSON or a URL. Raises ConfigError if its bytes are not UTF-8."""
    try:
        (text or "").encode()
    except UnicodeEncodeError as error:
        raise ConfigError("an argument is not valid UTF-8; check how it was typed or copied") from error
    return text


def check_texts(texts: list[str] | None) -> list[str] | None:
    """``check_text`` of each."""
    for text in texts or ():
        check_text(text)
    return texts


KeyOption = Annotated[
    str | None,
    typer.Option(envvar="PUNICA_API_KEY", callback=check_key, help="Your API key, if the cluster requires keys."),
]
UrlOption = Annotated[
    str,
    typer.Option(
        envvar="PUNICA_URL",
        callback=check_text,
        help="A frontend of the cluster; for https, PUNICA_CA_FILE names a trusted CA file.",
    ),
]
DEFAULT_URL = "http://127.0.0.1:8000"
SchedulerUrlOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="The scheduler's URL instead of the config's; @FILE reads it from a file."),
]
