"""How the screen is to be drawn: the terminal's abilities and the viewer's choices."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Order(StrEnum):
    """The order of the GPUs' rows."""

    BUSY = "busy"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Display:
    width: int
    #: None means unlimited.
    height: int | None
    is_ascii: bool = False
    #: It has at least 256 colours.
    has_colors: bool = False
    order: Order = Order.BUSY

    @property
    def overflow(self) -> Literal["crop", "ellipsis"]:
        """How a line that is too long ends."""
        return "crop" if self.is_ascii else "ellipsis"
