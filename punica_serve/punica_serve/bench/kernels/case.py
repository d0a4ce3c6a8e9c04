"""The batches that the operators are measured on: each adapter's rows and rank."""

from dataclasses import dataclass
from itertools import accumulate

from punica_serve.workload import Population, counts


@dataclass(frozen=True, slots=True)
class Case:
    """One batch: segments of rows, with an adapter each."""

    name: str
    #: Rows of each segment.
    lengths: tuple[int, ...]
    #: Rank of each segment's adapter, a multiple of 8.
    ranks: tuple[int, ...]

    @classmethod
    def of(cls, population: Population, num_rows: int, rank: int) -> "Case":
        """Requests spread over adapters of one rank, one row each, with an adapter's rows adjacent."""
        lengths = tuple(counts(population, num_rows))
        return cls(population.value, lengths, (rank,) * len(lengths))

    @property
    def num_rows(self) -> int:
        return sum(self.lengths)

    @property
    def num_adapters(self) -> int:
        return len(self.lengths)

    @property
    def indptr(self) -> tuple[int, ...]:
        """The first row of each segment, and the number of rows at the end."""
        return tuple(accumulate(self.lengths, initial=0))

    @property
    def rank_text(self) -> str:
        return ", ".join(map(str, sorted(set(self.ranks))))

    def pair_bytes(self, h_in: int, h_out: int, itemsize: int) -> int:
        """The least bytes that y += x A B must move: every adapter once, x read, y read and written."""
        weights = sum(self.ranks) * (h_in + h_out)
        return (weights + self.num_rows * (h_in + 2 * h_out)) * itemsize


def paper_flop(num_rows: int, h_in: int, h_out: int) -> int:
    """Punica's operation count of one SGMV launch (section 7.1): s_n * h_i * h_o * 2."""
    return num_rows * h_in * h_out * 2


def paper_bytes(num_rows: int, num_adapters: int, h_in: int, h_out: int) -> int:
    """Punica's byte count of 16-bit input and output: (s_n * (h_i + h_o) + n * h_i * h_o) * 2 bytes."""
    return (num_rows * (h_in + h_out) + num_adapters * h_in * h_out) * 2
