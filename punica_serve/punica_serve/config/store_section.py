"""The config section `store`: where adapter files are kept, and where tenants may register them from."""

from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, PlainValidator, ValidationInfo

from punica_serve.config.fields import ConfigModel, Name, PositiveInt, Seconds, resolve_folder

#: Schemes whose URLs name a place before the folder -> what it is called, and how to write such a URL. Others, such as
#: file://, may name none.
_PLACES = {
    "http": ("host", "http://HOST/FOLDER"),
    "https": ("host", "https://HOST/FOLDER"),
    "s3": ("bucket", "s3://BUCKET/FOLDER"),
    "gs": ("bucket", "gs://BUCKET/FOLDER"),
    "gcs": ("bucket", "gcs://BUCKET/FOLDER"),
    "hf": ("repository", "hf://USER/REPOSITORY"),
}


def _folder_or_url(url: str, info: ValidationInfo) -> str:
    """Resolves a folder relative to the config file, as everywhere."""
    if "://" in url:
        return _with_place(_of_known_scheme(url))
    return str(resolve_folder(Path(url), info))


def _of_known_scheme(url: str) -> str:
    """Refuses unknown schemes at startup. Imports no file system."""
    from fsspec import available_protocols

    scheme = url.partition("://")[0].partition("::")[0]
    if scheme == "memory":
        raise ValueError("memory:// is each process's own, and no worker would find adapters there; use a folder")
    if scheme not in available_protocols():
        raise ValueError(f"no file system is known for {scheme}://; use a folder, or a URL such as s3://bucket/folder")
    return url


def _with_place(url: str) -> str:
    """Refuses a URL that stops before its host or bucket, or skips it: only the first adapter would tell."""
    what, example = _PLACES.get(url.partition("://")[0], ("", ""))
    parts = urlsplit(url)
    if what and (not parts.hostname or (parts.scheme == "hf" and not parts.path.strip("/"))):
        raise ValueError(f"names no {what}; write {example}")
    return url


def _checked_prefix(prefix: str) -> str:
    if "://" not in prefix:
        raise ValueError("must begin with a scheme, as in s3://bucket/folder/ or file:///folder/")
    return prefix


def _parsed_network(network: Any) -> IPv4Network | IPv6Network:
    try:
        return ip_network(str(network))  # a number would be an address
    except ValueError as error:
        raise ValueError("must be a network, such as 10.1.0.0/16, without bits behind its length") from error


def _with_secret_paths(options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    """Checks the form of every {env: NAME} and {file: PATH}, and resolves paths relative to the config file."""
    return {name: _with_secret_path(value, info) for name, value in options.items()}


def _with_secret_path(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, dict):
        return value
    if value.keys() not in ({"env"}, {"file"}):
        return _with_secret_paths(value, info)
    ((kind, name),) = value.items()
    if not isinstance(name, str) or not name:
        needed = "the name of an environment variable" if kind == "env" else "a path"
        raise ValueError(f"{{{kind}: {name!r}}} must have {needed}")
    return {kind: str(resolve_folder(Path(name), info))} if kind == "file" else value


Prefix = Annotated[Name, AfterValidator(_checked_prefix)]
Network = Annotated[IPv4Network | IPv6Network, PlainValidator(_parsed_network)]

#: A file system's options, by fsspec's names. A value {env: NAME} or {file: PATH} is read from there when it is used.
Options = Annotated[dict[str, Any], AfterValidator(_with_secret_paths)]


class SourcesConfig(ConfigModel):
    """Where adapters may be registered from by URI. Administrators may use any place, local folders included."""

    #: Prefixes allowed for tenants' URIs; a prefix ends at a slash.
    allowed: tuple[Prefix, ...] = ("https://", "hf://")
    #: Options, mainly credentials, for sources that begin with a prefix; the longest matching prefix wins. https://
    #: takes `headers` only. Without an entry, hf:// is read anonymously and s3:// with the frontend's environment.
    credentials: dict[Prefix, Options] = Field(default_factory=dict, repr=False)
    #: Private networks that tenants may nevertheless reach, such as 10.1.0.0/16.
    private_networks: tuple[Network, ...] = ()
    #: Time limit for fetching an adapter from its source.
    timeout_s: Seconds = 120.0


class StoreConfig(ConfigModel):
    """Where adapter files are kept. Runners on other hosts need a shared folder or an object store."""

    #: A folder, or any URL that fsspec supports, such as s3://bucket/adapters. By default store/ in `data_folder`.
    url: Annotated[Name, AfterValidator(_folder_or_url)] | None = Field(default=None, repr=False)
    #: fsspec's options for the URL.
    options: Options = Field(default_factory=dict, repr=False)
    #: A store that does not answer within this time is considered down.
    timeout_s: Seconds = 10.0
    #: Time limit for moving an adapter to the store, or from it to a runner.
    transfer_timeout_s: Seconds = 300.0
    #: Largest weights file and largest upload. An archive must not expand to more either.
    max_adapter_bytes: PositiveInt = 1 << 30
    #: Space for adapters cached from an object store on each host's disk, in cache/ of `data_folder`.
    cache_bytes: PositiveInt = 20 << 30
    sources: SourcesConfig = SourcesConfig()
