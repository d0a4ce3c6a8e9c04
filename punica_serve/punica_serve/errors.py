"""Every error a user or an operator can meet, sorted by who has to act.

    PunicaError
    |- InvalidRequest         the client: a field of the request is wrong                      HTTP 400
    |  `- NotFound            the client: no such tenant or key                                HTTP 404
    |- Unauthorized           the client: no key, or one that is not valid                     HTTP 401
    |- Forbidden              the client: the key is good, but not for this                    HTTP 403
    |  `- TenantSuspended     the client's administrator: its tenant may do nothing for now    HTTP 403
    |- AdapterNotFound        the client: no such lora_id, or not yours                        HTTP 404
    |- GpuNotFound            the operator: no GPU of that UUID is in the cluster              HTTP 404
    |- Conflict               the client: a name is taken, or what it names is in the way      HTTP 409
    |- TooLarge               the client: an upload, or what is in it, is beyond the limits    HTTP 413
    |- OutOfCapacity          the client, later: the cluster is full                           HTTP 429
    |  `- QuotaExceeded       the client, later: its tenant has used what it may               HTTP 429
    |- ClusterUnavailable     the operator: no scheduler or no GPU can be reached              HTTP 503
    |  |- RegistryUnavailable the operator: the database of adapters and tenants is down       HTTP 503
    |  `- StoreUnavailable    the operator: adapters' files can't be read, or kept             HTTP 503
    |- RequestFailed          the operator: the cluster gave up on one request                 HTTP 500
    |- AdapterRejected        the adapter's owner: it would not be applied exactly as PEFT does
    |- ModelRejected          the operator: the base model's folder can't be served
    |- ConfigError            the operator: a config file, flag or address is wrong            exit code 2
    `- ProtocolError          us, or a peer of another version: a frame that can't be right

``assert`` is for our own bugs only. Messages say what was wrong, where, and what to do; they are shown as they are.
"""


class PunicaError(Exception):
    """Base of all errors below. ``code`` is the stable, machine-readable name that travels on the wire."""

    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        #: The field of the request, or the tensor or key of the file, that the message is about.
        self.param = param
        #: When trying again may help, where that is known.
        self.retry_after_s = retry_after_s


class InvalidRequest(PunicaError):
    """A field of a client's request is missing, of the wrong type, or out of range."""

    code = "invalid_request"


class NotFound(InvalidRequest):
    """What the request names is not there: a tenant, or a key."""

    code = "not_found"


class Unauthorized(PunicaError):
    """The request carries no API key, or one that is unknown, revoked or expired."""

    code = "invalid_api_key"


class Forbidden(PunicaError):
    """The key is valid, but may not do this. Never said of another tenant's adapter: that is not found."""

    code = "permission_denied"


class TenantSuspended(Forbidden):
    """The key is valid, and an administrator has suspended its tenant."""

    code = "tenant_suspended"


class AdapterNotFound(PunicaError):
    """The lora_id names no adapter that this client may use."""

    code = "adapter_not_found"


class GpuNotFound(PunicaError):
    """No GPU of this UUID is in the cluster. The message names those that are."""

    code = "gpu_not_found"


class Conflict(PunicaError):
    """What is to be made exists, or what is to be changed has changed meanwhile."""

    code = "conflict"


class TooLarge(PunicaError):
    """More bytes than the limit allows, in transit or once unpacked."""

    code = "too_large"


class OutOfCapacity(PunicaError):
    """The queue is full, or the request waited past its deadline. Trying again later may work."""

    code = "out_of_capacity"


class QuotaExceeded(OutOfCapacity):
    """The tenant has used what its quota allows for now. ``retry_after_s`` says when there will be more."""

    code = "quota_exceeded"


class ClusterUnavailable(PunicaError):
    """The frontend has no scheduler, or the cluster no GPU."""

    code = "cluster_unavailable"


class RegistryUnavailable(ClusterUnavailable):
    """The database of adapters, tenants and keys can't be reached: what changes it fails, and nothing else.

    The message is for clients; as a string, for logs and terminals, it has the ``detail`` too.
    """

    code = "registry_unavailable"

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_s: float | None = None, detail: str = ""
    ) -> None:
        """``detail`` says which database it is, and why."""
        super().__init__(message, param=param, retry_after_s=retry_after_s)
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.message} ({self.detail})" if self.detail else self.message


class StoreUnavailable(ClusterUnavailable):
    """The files of adapters can't be read, or kept: the store is down, slow or full."""

    code = "store_unavailable"


class RequestFailed(PunicaError):
    """The cluster gave up on one request: its adapter can't be loaded, or it kills the workers it runs on."""

    code = "request_failed"


class AdapterRejected(PunicaError):
    """An adapter that would not be applied exactly as PEFT applies it. ``param`` is the field or tensor.

    The message is for clients; as a string, for logs and terminals, it begins with ``where``: its folder.
    """

    code = "adapter_rejected"

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_s: float | None = None, where: str = ""
    ) -> None:
        super().__init__(message, param=param, retry_after_s=retry_after_s)
        self.where = where

    def __str__(self) -> str:
        return f"{self.where}{self.message}"


class ModelRejected(PunicaError):
    """A base model folder that can't be read or that the engine does not implement. ``param`` is the file or field."""

    code = "model_rejected"


class ConfigError(PunicaError):
    """A config file, an option or an address is wrong. The command line prints it and exits with 2."""

    code = "config_error"


class ProtocolError(PunicaError):
    """A peer sent a frame that can't be right, speaks another major version, or has the wrong token."""

    code = "protocol_error"
