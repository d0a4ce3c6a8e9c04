"""What a config file says of the adapters' files: where they are kept, and where tenants may bring them from."""

from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainValidator, ValidationInfo

from punica_serve.config_fields import ConfigModel, Name, PositiveInt, Seconds, resolve_folder


def _folder_or_url(url: str, info: ValidationInfo) -> str:
    """A folder is relative to the config file, as all are."""
    if "://" in url:
        return _of_known_scheme(url)
    return str(resolve_folder(Path(url), info))


def _of_known_scheme(url: str) -> str:
    """Refuses at the start what no try would open. Imports no file system."""
    from fsspec import available_protocols

    scheme = url.partition("://")[0].partition("::")[0]
    if scheme not in available_protocols():
        raise ValueError(
            f"there is no file system for {scheme}://; must be a folder, or a URL such as s3://bucket/folder"
        )
    return url


def _checked_prefix(prefix: str) -> str:
    if "://" not in prefix:
        raise ValueError("must begin with a scheme, as in s3://bucket/folder/ or file:///folder/")
    return prefix


def _parsed_network(network: Any) -> IPv4Network | IPv6Network:
    return ip_network(network)


Prefix = Annotated[Name, AfterValidator(_checked_prefix)]
Network = Annotated[IPv4Network | IPv6Network, PlainValidator(_parsed_network)]

#: A file system's options, in fsspec's names. A value {env: NAME} or {file: PATH} is read from there when it is used.
Options = dict[str, Any]


class SourcesConfig(ConfigModel):
    """Where adapters may be registered from by URI. Admins may name any place, local folders too."""

    #: What a tenant's URI must begin with, up to a slash.
    allowed: tuple[Prefix, ...] = ("https://", "hf://")
    #: Options of the sources that begin with a prefix, credentials above all; the longest prefix counts. Of https://,
    #: `headers` alone. Without, hf:// is read anonymously and s3:// as the frontend's environment says.
    credentials: dict[Prefix, Options] = Field(default_factory=dict, repr=False)
    #: Networks that tenants may reach though they are private, such as 10.1.0.0/16.
    private_networks: tuple[Network, ...] = ()
    #: A source that has not given all by then is given up.
    timeout_s: Seconds = 120.0


class StoreConfig(ConfigModel):
    """Where adapters' files are kept. Runners on other hosts need a folder that all mount, or an object store."""

    #: A folder, or any URL that fsspec knows, such as s3://bucket/adapters; store/ in `data_folder` by default.
    url: Annotated[Name, AfterValidator(_folder_or_url)] | None = Field(default=None, repr=False)
    #: The URL's own.
    options: Options = Field(default_factory=dict, repr=False)
    #: A store that has not answered by then is taken to be down.
    timeout_s: Seconds = 10.0
    #: How long an adapter may be on its way to the store, or from it to a runner.
    transfer_timeout_s: Seconds = 300.0
    #: Largest weights, and largest upload. An archive may not expand to more either.
    max_adapter_bytes: PositiveInt = 1 << 30
    #: What runners keep of an object store on each host's disk, in cache/ of `data_folder`.
    cache_bytes: PositiveInt = 20 << 30
    sources: SourcesConfig = SourcesConfig()
