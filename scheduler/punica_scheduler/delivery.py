"""What one event has for each frontend: tokens in columns, and the requests that have ended."""

from dataclasses import dataclass, field

from punica_serve.protocol import Deliveries, Ending, TokenLogprobs


@dataclass(slots=True)
class DeliveryColumns:
    """The rows of a Deliveries while they are being gathered. A row is appended to the first three lists at once."""

    handles: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    #: May be shorter than the others: few requests ask for any.
    _logprobs: list[TokenLogprobs | None] = field(default_factory=list)

    def add_logprobs(self, logprobs: TokenLogprobs) -> None:
        """Of the row that was appended last."""
        self._pad_logprobs(len(self.handles) - 1)
        self._logprobs.append(logprobs)

    def message(self) -> Deliveries:
        """All rows, as they travel."""
        if self._logprobs:
            self._pad_logprobs(len(self.handles))
        return Deliveries(
            tuple(self.handles),
            tuple(self.positions),
            tuple(self.token_ids),
            tuple(self._logprobs),
            tuple(self.endings),
        )

    def _pad_logprobs(self, num_rows: int) -> None:
        self._logprobs += [None] * (num_rows - len(self._logprobs))
