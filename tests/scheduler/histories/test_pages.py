"""After any history all pages are free, no request waits, and no worker runs anything."""

from cluster_history import HISTORIES, ClusterHistory


class PageHistory(ClusterHistory):
    def teardown(self) -> None:
        self.ends_well()
        snapshot = self.cluster.scheduler.snapshot(self.cluster.now_ns)
        assert snapshot.queue_length == 0
        for gpu in snapshot.gpus:
            assert gpu.working_set == 0
            assert gpu.free_kv_pages == gpu.gpu.num_kv_pages
            assert not self.cluster.workers[gpu.gpu.uuid].sequences


PageHistory.TestCase.settings = HISTORIES
TestPages = PageHistory.TestCase
