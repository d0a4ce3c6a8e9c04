"""What one event has for each frontend: tokens in columns, and the requests that have ended."""

from msgspec import Struct, field

from punica_serve.protocol import Deliveries, Ending, TokenLogprobs


class DeliveryColumns(Struct):
    """A Deliveries while it is being gathered. An event brings one report at most, so tokens come all at once."""

    handles: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    offset: int = 0
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    endings: list[Ending] = field(default_factory=list)

    def message(self) -> Deliveries:
        """All rows, as they travel."""
        return Deliveries(self.handles, self.positions, self.token_ids, self.logprobs, tuple(self.endings), self.offset)
