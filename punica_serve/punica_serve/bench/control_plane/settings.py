"""What one run of the benchmark is: the fleet, its load, and for how long."""

from dataclasses import dataclass, field

from punica_serve.errors import ConfigError

#: GPUs of one host, whose reports share a link.
GPUS_PER_RUNNER = 8
PAGE_SIZE = 16
#: Room for any request here: memory is not what is measured.
NUM_KV_PAGES = 4_000_000
NUM_ADAPTERS = 512
PROMPT_TOKENS = 128

#: A token's id is the time of its making, in these units, in as many bits as a vocabulary's ids have.
STAMP_S = 1e-4
NUM_STAMPS = 1 << 17


@dataclass(frozen=True, slots=True)
class ControlPlaneSettings:
    """The defaults are the goals' fleet and rate."""

    num_gpus: int = 512
    batch_size: int = 32
    #: All GPUs together; it sets how long a step takes.
    tokens_per_s: float = 300_000.0
    num_frontends: int = 2
    #: Of each of the two measurements, and before each, not measured.
    seconds: float = 10.0
    settling_s: float = 3.0
    #: Tokens of an answer where requests come and go: evenly from the first to the second.
    answer_tokens: tuple[int, int] = (100, 300)
    #: Where requests stay.
    endless_tokens: int = 1_000_000
    num_queued: int = 20_000
    num_placement_gpus: int = 1_000
    num_placements: int = 5_000
    #: Of each GPU, to see where a token's cost comes from.
    num_part_steps: int = 40

    def __post_init__(self) -> None:
        if self.step_s > self.seconds:
            message = (
                f"every GPU makes a step in {self.step_s:g} s, longer than the {self.seconds:g} s that are measured; "
                "raise `--tokens-per-s` or `--seconds`, or lower `--gpus` or `--batch`"
            )
            raise ConfigError(message, param="tokens_per_s")

    @property
    def num_requests(self) -> int:
        """That run at any time."""
        return self.num_gpus * self.batch_size

    @property
    def step_s(self) -> float:
        return self.num_requests / self.tokens_per_s


@dataclass(frozen=True, slots=True)
class Load:
    """What the two processes of load need to know."""

    settings: ControlPlaneSettings
    scheduler_url: str
    token: str = field(repr=False)
    #: Requests end and are replaced by new ones.
    has_churn: bool


def stamp(now_s: float) -> int:
    """The token id of a token that is made now, by the monotonic clock."""
    return int(now_s / STAMP_S) % NUM_STAMPS


def age(token_id: int, now_s: float) -> int:
    """How long ago a token was made, in units of STAMP_S; its clock goes round in 13 s."""
    return (stamp(now_s) - token_id) % NUM_STAMPS
