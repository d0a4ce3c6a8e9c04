"""What a request is, and what there is to know of the tokens that it draws."""

from collections.abc import Iterable
from typing import NamedTuple

from punica_serve.errors import PunicaError
from punica_serve.protocol.base import Struct, TokenId


class AdapterRef(Struct, frozen=True):
    """An adapter as everything behind the frontend knows it: by its bytes, never by its name."""

    #: sha256(sha256(adapter_config.json) || sha256(adapter_model.safetensors)), hexadecimal.
    digest: str
    #: Where the bytes are: the path or URL of a PEFT folder, or `dummy:` and a number for random ones.
    uri: str
    #: Size of the weights file.
    num_bytes: int
    #: Highest rank over all layers, for each linear module the adapter touches: {"q_proj": 16, ...}.
    ranks: dict[str, int]


class SamplingParams(Struct, frozen=True):
    """How the next token is drawn, and when there are enough. The defaults draw greedily, at most 16 tokens."""

    #: 0 is greedy.
    temperature: float = 0.0
    top_p: float = 1.0
    #: 0 keeps all.
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    #: 64 bits. Whoever takes a request in (frontend, or the engine's own API) gives it a random one in place of None.
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    #: No end of sequence and no stop token id before this many generated tokens.
    min_tokens: int = 0
    max_tokens: int = 16
    #: None: no logprobs. n: the drawn token's, and those of the n most likely tokens.
    logprobs: int | None = None

    def end_ids(self, eos_token_ids: Iterable[int]) -> frozenset[int]:
        """The tokens that end the request, of a model with these end-of-sequence tokens. They have no text."""
        return frozenset(self.stop_token_ids if self.ignore_eos else (*eos_token_ids, *self.stop_token_ids))


class Request(Struct, frozen=True):
    """All there is to know to run a request from where it is: new, evicted, moved and recovered ones look the same."""

    #: Unique in the cluster; made by the frontend.
    request_id: str
    #: Set once by the frontend. First come, first served goes by (arrival_ns, request_id).
    arrival_ns: int
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    adapter: AdapterRef | None = None
    #: Tokens generated so far, by earlier assignments.
    generated_ids: tuple[TokenId, ...] = ()
    #: Whose request it is, set by the frontend: the key of a fair queue.
    tenant: str | None = None
    #: W3C's, of the span that what its receiver does belongs to; None: it is not traced.
    traceparent: str | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.generated_ids)

    @property
    def max_num_tokens(self) -> int:
        """Tokens of prompt and the longest answer the request may get."""
        return len(self.prompt_ids) + self.sampling.max_tokens


class TenantQuota(Struct, frozen=True):
    """What a tenant may ask of the whole cluster. None: as much as it likes."""

    #: Requests that run or wait.
    max_concurrent: int | None = None
    requests_per_min: int | None = None
    #: Of prompts and answers.
    tokens_per_min: int | None = None


class AssignmentId(NamedTuple):
    """One stay of one request on one GPU. Tokens name it alone, so late tokens of an old stay are told apart."""

    #: The scheduler's start time: a restarted scheduler never reuses an id.
    incarnation: int
    counter: int


class TokenLogprobs(Struct, frozen=True):
    """Natural logarithms of the model's probabilities, before penalties and temperature."""

    logprob: float
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


def check_columns(
    names: tuple[int, ...],
    positions: tuple[int, ...],
    token_ids: tuple[int, ...],
    logprobs: tuple[TokenLogprobs | None, ...],
) -> None:
    """Raises ValueError, which a decoder tells as a ProtocolError, for columns that are not of one table."""
    num_rows = len(names)
    if len(positions) != num_rows or len(token_ids) != num_rows or (logprobs and len(logprobs) != num_rows):
        raise ValueError("the columns of a message are not of one length")


class WireError(Struct, frozen=True):
    """A PunicaError on the wire: its ``code``, ``message``, ``param`` and ``retry_after_s``."""

    code: str
    message: str
    param: str | None = None
    #: When trying again may help, where that is known.
    retry_after_s: float | None = None

    @classmethod
    def of(cls, error: PunicaError) -> "WireError":
        return cls(error.code, error.message, error.param, error.retry_after_s)
