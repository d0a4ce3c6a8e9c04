"""The config section `frontend`: the HTTP and websocket server."""

from typing import Literal

from punica_serve.config.fields import ConfigModel, Flag, Name, NonNegativeInt, Port, PositiveInt, Seconds
from punica_serve.config.tls_section import HttpsConfig
from punica_serve.config.web_fields import Network, Origin

#: How to treat a field of OpenAI's or TGI's API that is not implemented and would change the answer.
UnknownFields = Literal["refuse", "warn"]


class FrontendConfig(ConfigModel):
    """The HTTP and websocket server."""

    host: Name = "127.0.0.1"
    port: Port = 8000
    #: Speak HTTPS with clients. Plain HTTP, the default, needs a TLS proxy in front, or a trusted network.
    tls: HttpsConfig | None = None
    #: HTTP connections and websockets at once; further ones are answered with 503. Each uses an open file.
    max_connections: PositiveInt = 16_384
    #: Treat everybody as an administrator. By default only clients on this machine are, until an API key exists.
    insecure_no_auth: Flag = False
    #: Answer GET /metrics without a key; otherwise it needs an administrator's key.
    public_metrics: Flag = False
    #: Handling of unsupported fields in OpenAI's and TGI's bodies. refuse: an error that names the field. warn: answer
    #: without it, and say so in the header X-Punica-Ignored-Fields and in the log. Fields that select an adapter
    #: are always refused.
    unknown_fields: UnknownFields = "refuse"
    #: How many adapters, tenants and unknown fields, the most used of each, get metric series of their own. The rest
    #: are counted as `other`.
    metrics_names: NonNegativeInt = 20
    #: Addresses and networks of proxies whose X-Forwarded-Proto and X-Forwarded-For are trusted; this machine's by
    #: default. A proxy must overwrite these headers and pass on `Host`.
    trusted_proxies: tuple[Network, ...] = ("127.0.0.1", "::1")
    #: Web origins that may call this frontend from a browser, such as https://app.example.com, or "*" for all. They
    #: need an API key; cookies are never accepted.
    cors_origins: tuple[Origin, ...] = ()
    #: After SIGTERM, how long answers in progress may take before they are cancelled.
    drain_timeout_s: Seconds = 30.0
