"""Sends an adapter for registration: its URI, or its bytes, streamed from disk."""

import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO

from punica_serve.adapters.folder import CONFIG_NAME, WEIGHTS_NAME
from punica_serve.adapters.unsupported_weights import refuse_unsupported_weights
from punica_serve.cli.adapters.client import AdapterClient
from punica_serve.cli.options import check_text
from punica_serve.errors import ConfigError
from punica_serve.errors.reasons import reason_of

#: Archive name suffix -> media type.
_ARCHIVES = {
    ".zip": "application/zip",
    ".tar": "application/x-tar",
    ".tar.gz": "application/gzip",
    ".tgz": "application/gzip",
}


def register(client: AdapterClient, name: str, source: str) -> Any:
    """Registers an adapter and returns it. ``source`` is a URI, or an archive or PEFT folder on this machine.

    Raises ConfigError if ``source`` is neither, or can't be read; AdapterRejected for weights in another format.
    """
    if "://" in source:
        return client.post("/v1/adapters", {"name": name, "uri": check_text(source)})
    given = os.path.expanduser(source)  # pathlib's own raises for an unknown user
    path = Path(given)
    if os.path.isdir(given):
        return _send_folder(client, name, path)
    media_type = next((kind for suffix, kind in _ARCHIVES.items() if path.name.endswith(suffix)), None)
    if media_type and os.path.isfile(path):
        with _opened(path) as archive:
            headers = {"Content-Type": media_type, "Content-Length": str(path.stat().st_size)}
            return client.send("POST", "/v1/adapters", params={"name": name}, content=archive, headers=headers)
    wrong = "is not" if os.path.lexists(given) else "does not exist here, or you may not see it; give"
    raise ConfigError(f"{source!r} {wrong} a URI, a PEFT folder or a {', '.join(_ARCHIVES)} file", param="source")


def _send_folder(client: AdapterClient, name: str, folder: Path) -> Any:
    with suppress(OSError):  # a folder that can't be listed is reported below
        if not os.path.exists(folder / WEIGHTS_NAME):
            refuse_unsupported_weights(os.listdir(folder))
    with ExitStack() as stack:
        files = {}
        for file_name in (CONFIG_NAME, WEIGHTS_NAME):
            path = folder / file_name
            if not os.path.isfile(path):
                message = f"{path} does not exist, or you may not see it; PEFT's save_pretrained(folder) writes it"
                raise ConfigError(message, param="source")
            files[file_name] = (file_name, stack.enter_context(_opened(path)), "application/octet-stream")
        return client.send("POST", "/v1/adapters", params={"name": name}, files=files)


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {reason_of(error)}", param="source") from error
