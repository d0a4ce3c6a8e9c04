"""The config section `tracing`: where traces of requests go."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from punica_serve.config.fields import ConfigModel, Name


def _checked_endpoint(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must have the form http://host:port or https://host:port")
    return url


class TracingConfig(ConfigModel):
    """OpenTelemetry traces of requests; off without an endpoint. Needs the extra `otel`."""

    #: URL of a collector, such as http://127.0.0.1:4318; OTEL_EXPORTER_OTLP_ENDPOINT by default.
    otlp_endpoint: Annotated[Name, AfterValidator(_checked_endpoint)] | None = Field(default=None, repr=False)
