"""All errors that users and operators can meet, with who has to act.

    PunicaError
    |- InvalidRequest         the client: a field of the request is wrong                      HTTP 400
    |  |- ContextOverflow     the client: the prompt, or it with its answer, is too long       HTTP 400
    |  `- NotFound            the client: no such tenant or key                                HTTP 404
    |- Unauthorized           the client: no key, or one that is not valid                     HTTP 401
    |- Forbidden              the client: the key is good, but not for this                    HTTP 403
    |  |- TenantSuspended     the client's administrator: its tenant is suspended              HTTP 403
    |  `- AdapterLimitReached the client: its tenant may have no more adapters or bytes        HTTP 403
    |- AdapterNotFound        the client: no such lora_id, or not yours                        HTTP 404
    |- GpuNotFound            the operator: no GPU of that UUID is in the cluster              HTTP 404
    |- Conflict               the client: a name is taken, or the object has changed           HTTP 409
    |  `- LastAdminKey        the operator: no administrator's key would be left              HTTP 409
    |- TooLarge               the client: an upload or its content exceeds a limit             HTTP 413
    |- OutOfCapacity          the client, later: the cluster is full                           HTTP 429
    |  `- QuotaExceeded       the client, later: its tenant's quota is used up                 HTTP 429
    |- ClusterUnavailable     the operator: no scheduler or no GPU can be reached              HTTP 503
    |  |- RegistryUnavailable the operator: the database of adapters and tenants is down       HTTP 503
    |  `- StoreUnavailable    the operator: adapters' files can't be read or written           HTTP 503
    |- RequestFailed          the operator: the cluster gave up on one request                 HTTP 500
    |- AdapterRejected        the adapter's owner: it can't be applied exactly as PEFT does
    |- ModelRejected          the operator: the base model's folder can't be served
    |  `- ModelFileMissing    the operator: a file of the folder is not there, yet or at all
    |- ConfigError            the operator: a config file, flag or address is wrong            exit code 2
    `- ProtocolError          us, or the operator: an invalid frame, or a peer of another version

``assert`` is for our own bugs only. Messages say what was wrong, where, and what to do, and are shown unchanged.
"""


class PunicaError(Exception):
    """Base of all errors below. ``code`` is the stable, machine-readable name that travels on the wire."""

    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        #: The field of the request, or the tensor or key of the file, that the message is about.
        self.param = param
        #: Seconds after which a retry may succeed, if known.
        self.retry_after_s = retry_after_s


class InvalidRequest(PunicaError):
    """A field of a client's request is missing, of the wrong type, or out of range."""

    code = "invalid_request"


class ContextOverflow(InvalidRequest):
    """The prompt, alone or with the requested answer, has more tokens than the context or any KvCache holds."""

    #: OpenAI's code.
    code = "context_length_exceeded"


class NotFound(InvalidRequest):
    """The request names a tenant or a key that does not exist."""

    code = "not_found"


class Unauthorized(PunicaError):
    """The request carries no API key, or one that is unknown, revoked or expired."""

    code = "invalid_api_key"


class Forbidden(PunicaError):
    """The key is valid, but may not do this. Another tenant's adapter raises AdapterNotFound instead."""

    code = "permission_denied"


class TenantSuspended(Forbidden):
    """The key is valid, and an administrator has suspended its tenant."""

    code = "tenant_suspended"


class AdapterLimitReached(Forbidden):
    """The tenant may have no more adapters, or bytes of them. Waiting does not help; deleting does."""

    code = "adapter_limit_reached"


class AdapterNotFound(PunicaError):
    """The lora_id names no adapter that this client may use."""

    code = "adapter_not_found"


class GpuNotFound(PunicaError):
    """No GPU with this UUID is in the cluster. The message names those that are."""

    code = "gpu_not_found"


class Conflict(PunicaError):
    """The new object exists already, or the object to change has changed meanwhile."""

    code = "conflict"


class LastAdminKey(Conflict):
    """This is the last key that can administrate over the API, and ``force`` was not given."""

    code = "last_admin_key"


class TooLarge(PunicaError):
    """An upload has more bytes than the limit allows, as sent or unpacked."""

    code = "too_large"


class OutOfCapacity(PunicaError):
    """The queue is full, or the request waited past its deadline. A later retry may succeed."""

    code = "out_of_capacity"


class QuotaExceeded(OutOfCapacity):
    """The tenant's quota is used up for now. ``retry_after_s`` says when some of it is available again."""

    code = "quota_exceeded"


class ClusterUnavailable(PunicaError):
    """The frontend has no scheduler, or the cluster has no GPU."""

    code = "cluster_unavailable"


class RegistryUnavailable(ClusterUnavailable):
    """The database of adapters, tenants and keys can't be reached: only calls that change it fail.

    The message is for clients; the string, for logs and terminals, also has the ``detail``.
    """

    code = "registry_unavailable"

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_s: float | None = None, detail: str = ""
    ) -> None:
        """``detail`` says which database it is, and why it can't be reached."""
        super().__init__(message, param=param, retry_after_s=retry_after_s)
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.message} ({self.detail})" if self.detail else self.message


class StoreUnavailable(ClusterUnavailable):
    """Adapters' files can't be read or written: the store is down, slow or full."""

    code = "store_unavailable"


class RequestFailed(PunicaError):
    """The cluster gave up on one request: its adapter can't be loaded, or it kills its workers."""

    code = "request_failed"


class AdapterRejected(PunicaError):
    """An adapter that can't be applied exactly as PEFT applies it. ``param`` is the field or tensor.

    The message is for clients; the string, for logs and terminals, begins with ``where``: the adapter's folder.
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


class ModelFileMissing(ModelRejected):
    """A file that the base model needs is not in its folder: nobody has put it there, or a download still runs."""

    code = "model_file_missing"


class ConfigError(PunicaError):
    """A config file, an option or an address is wrong. The command line prints it and exits with 2."""

    code = "config_error"


class ProtocolError(PunicaError):
    """A peer sent an invalid frame, speaks another major version, or has the wrong token."""

    code = "protocol_error"
