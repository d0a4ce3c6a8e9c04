"""The processes of the ranks that follow an engine in this process."""

from punica_serve.engine.engine import Engine
from punica_serve.engine.ranks.rank_process import RankProcess


def rank_pids(engine: Engine) -> list[int]:
    """Their process ids, by rank."""
    return [rank.pid for rank in engine.ranks if isinstance(rank, RankProcess)]
