"""The words of attention's work tables, for the host that writes them and the kernels that read them."""


class WorkTileField:
    """The words of a work tile. Unused tiles are -1."""

    #: The first query row, and their number.
    FIRST_ROW = 0
    NUM_ROWS = 1
    #: The first page of the split, as an index into the step's pages.
    FIRST_PAGE = 2
    #: Tokens of the split, and the last of them that the first row sees: negative if it sees none.
    NUM_TOKENS = 3
    LAST_VISIBLE = 4
    #: The split's index in the workspace (-1 if the context is whole), that of the block's first one, and the number of
    #: the block's tiles.
    SPLIT = 5
    FIRST_SPLIT = 6
    NUM_SPLITS = 7
    #: In a table with shared prefixes alone, where rows are places in its list of rows: the block's first row, and the
    #: number of the block's rows.
    BLOCK_FIRST_ROW = 8
    BLOCK_NUM_ROWS = 9


class RowField:
    """The words of a place in the list of rows, behind the tiles of a table with shared prefixes."""

    #: The query row, and the splits of its context, those of its prefix first.
    ROW = 0
    NUM_SPLITS = 1


#: Words of a tile, of one in a table with shared prefixes, and of a place in that table's list of rows.
TILE_WORDS, SHARING_TILE_WORDS, ROW_WORDS = 8, 10, 2
