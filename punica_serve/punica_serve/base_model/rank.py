"""The place of a process in a tensor-parallel group, and the share of a model that it holds. Free of torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a group of ``size`` that serve one copy of a model together, one GPU each."""

    index: int
    size: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.size:
            raise ValueError(f"rank {self.index} is not in a group of {self.size}")

    def share(self, count: int, width: int = 1) -> range:
        """Returns this rank's share of ``count`` things, each ``width`` numbers wide, as a range of those numbers.

        ``count`` must be a multiple of ``size`` or divide it. Ranks share a thing if there are fewer than ranks.
        """
        first = self.index * count // self.size
        return range(first * width, (first + max(1, count // self.size)) * width)

    def blocks(self, total: int, block: int) -> range:
        """Returns this rank's share of ``total`` numbers in whole blocks, as even as possible; the last may be cut."""
        num_blocks = -(-total // block)
        first, end = (index * num_blocks // self.size for index in (self.index, self.index + 1))
        return range(first * block, min(end * block, total))


#: A process that serves a model by itself.
SINGLE = Rank(0, 1)
