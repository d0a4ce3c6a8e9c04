"""A rank as its leader sees it, and the end of its link that its process would have."""

import multiprocessing
from concurrent.futures import Future

from punica_serve.engine.ranks.rank_link import RankLink
from punica_serve.engine.ranks.rank_messages import LeaderToRank, RankToLeader
from punica_serve.protocol import Message


class LinkedRank:
    """Both ends are in this process."""

    def __init__(self, index: int) -> None:
        ours, theirs = multiprocessing.Pipe()
        self.index = index
        self.name = f"rank {index}"
        self.gpu_uuid = ""
        self.link = RankLink(ours, RankToLeader)
        self.joined: Future[RankLink] = Future()
        self.joined.set_result(self.link)
        self.other = RankLink(theirs, LeaderToRank)

    def tell(self, message: Message) -> None:
        self.link.send(message)

    def end_reason(self) -> str:
        return "killed by SIGKILL"
