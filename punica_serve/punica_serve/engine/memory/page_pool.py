"""The free list of a pool of equal pages."""

from punica_serve.errors.invariants import require


class PagePool:
    """Hands out page numbers from 0 to num_pages - 1: the last freed is the first used again."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Takes ``count`` pages. Check ``num_free`` first: asking for more is a bug."""
        require(0 <= count <= len(self._free), f"{count} pages asked, {len(self._free)} free")
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return taken

    def free(self, pages: list[int]) -> None:
        """Gives pages back."""
        self._free.extend(pages)

    def check_invariants(self, held: list[int]) -> None:
        """Every page is either free or in ``held`` (all pages that owners say they hold), and exactly once."""
        everything = sorted(self._free + held)
        if everything != list(range(self.num_pages)):
            raise AssertionError(
                f"pages lost or held twice: {len(self._free)} free, {len(held)} held of {self.num_pages}"
            )
