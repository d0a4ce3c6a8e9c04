"""The options of a run: the fleet, its load, and the duration."""

from dataclasses import dataclass, field

from punica_serve.errors import ConfigError

#: GPUs per host, whose reports share a link.
GPUS_PER_RUNNER = 8
PAGE_SIZE = 16
#: Enough for any request here: memory is not measured.
NUM_KV_PAGES = 4_000_000
NUM_ADAPTERS = 512
PROMPT_TOKENS = 128
#: GPUs of the fleets that the goals of placements name.
PLACEMENT_SIZES = (60, 1_000)

#: A token's id is its creation time in these units, in as many bits as a vocabulary's ids have.
STAMP_S = 1e-4
NUM_STAMPS = 1 << 17


@dataclass(frozen=True, slots=True)
class ControlPlaneSettings:
    """The defaults are the fleet and rate of the goals."""

    num_gpus: int = 512
    batch_size: int = 32
    #: Total of all GPUs; it determines the duration of a step.
    tokens_per_s: float = 300_000.0
    num_frontends: int = 2
    #: Duration of each of the two measurements, and of an unmeasured run before each.
    seconds: float = 10.0
    settling_s: float = 3.0
    #: Shortest and longest answer under churn, in tokens; uniformly distributed.
    answer_tokens: tuple[int, int] = (100, 300)
    #: Length of answers that don't end.
    endless_tokens: int = 1_000_000
    num_queued: int = 20_000
    #: GPUs of the fleets on which placements are timed.
    placement_sizes: tuple[int, ...] = PLACEMENT_SIZES
    #: Timed on each fleet with each policy, three times.
    num_placements: int = 2_000
    #: Steps of each GPU for measuring the parts of a token's cost.
    num_part_steps: int = 40

    def __post_init__(self) -> None:
        if self.step_s > self.seconds:
            message = (
                f"a step of every GPU takes {self.step_s:g} s, longer than the {self.seconds:g} s that are measured; "
                "raise `--tokens-per-s` or `--seconds`, or lower `--gpus` or `--batch`"
            )
            raise ConfigError(message, param="tokens_per_s")

    @property
    def num_requests(self) -> int:
        """Requests that run at any time."""
        return self.num_gpus * self.batch_size

    @property
    def step_s(self) -> float:
        return self.num_requests / self.tokens_per_s


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """The settings of the two load processes."""

    settings: ControlPlaneSettings
    scheduler_url: str
    token: str = field(repr=False)
    #: Requests end and are replaced by new ones.
    has_churn: bool


def stamp(now_s: float) -> int:
    """The id of a token made now, by the monotonic clock."""
    return int(now_s / STAMP_S) % NUM_STAMPS


def age(token_id: int, now_s: float) -> int:
    """A token's age in units of STAMP_S; its clock wraps around after 13 s."""
    return (stamp(now_s) - token_id) % NUM_STAMPS
