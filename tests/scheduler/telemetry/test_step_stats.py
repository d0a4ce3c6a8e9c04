"""Batch sizes over the steps of the last second."""

from punica_scheduler.telemetry.step_stats import StepFigures, StepStats
from punica_serve.protocol import StepReport

TICK_NS = 200_000_000
NONE = StepFigures(0.0, 0, 0)


class Watched:
    """One GPU's reports, and ticks as the server makes them."""

    def __init__(self) -> None:
        self.stats = StepStats()
        self.now_ns = 1_000 * TICK_NS
        self.stats.advance(self.now_ns)
        self.step = 0

    def runs(self, batch_size: int, num_adapters: int = 1) -> None:
        self.step += 1
        self.reports(batch_size, num_adapters)

    def reports(self, batch_size: int, num_adapters: int = 1) -> None:
        self.stats.observe(
            StepReport(
                gpu_uuid="A",
                epoch=0,
                step=self.step,
                applied_seq=0,
                free_kv_pages=0,
                batch_size=batch_size,
                num_prefill_tokens=0,
                num_adapters=num_adapters,
                duration_s=0.01,
            )
        )

    def ticks(self, count: int = 1) -> None:
        for _ in range(count):
            self.now_ns += TICK_NS
            self.stats.advance(self.now_ns)


def test_mean_and_most_are_over_steps() -> None:
    gpu = Watched()
    for batch_size, num_adapters in ((1, 1), (4, 3), (4, 2)):
        gpu.runs(batch_size, num_adapters)
    assert gpu.stats.figures("A") == StepFigures(3.0, 4, 3)


def test_a_gpu_that_ran_nothing_has_zeros() -> None:
    assert Watched().stats.figures("A") == NONE


def test_a_short_request_is_seen_a_second_after_its_end() -> None:
    gpu = Watched()
    for _ in range(20):
        gpu.runs(1)
    gpu.reports(0)  # idle again
    gpu.ticks(5)
    assert gpu.stats.figures("A") == StepFigures(1.0, 1, 1)
    gpu.ticks()
    assert gpu.stats.figures("A") == NONE


def test_a_report_that_only_follows_commands_counts_no_step() -> None:
    gpu = Watched()
    gpu.runs(2)
    gpu.runs(8)
    for _ in range(5):
        gpu.reports(8)
    assert gpu.stats.figures("A").batch_size_mean == 5.0
    assert sum(gpu.stats.tokens.snapshot().counts) == 2


def test_each_step_is_in_one_row_of_the_history() -> None:
    gpu = Watched()
    rows = []
    for tick in range(1, 26):
        gpu.runs(tick)
        if tick % 5 == 0:
            rows.append(gpu.stats.second("A"))
        gpu.ticks()
    assert [row.batch_size_mean for row in rows] == [3.0, 8.0, 13.0, 18.0, 23.0]
    assert [row.batch_size_max for row in rows] == [5, 10, 15, 20, 25]


def test_after_a_long_silence_the_past_is_forgotten() -> None:
    gpu = Watched()
    gpu.runs(3)
    gpu.stats.advance(gpu.now_ns + 10 * TICK_NS)
    assert gpu.stats.figures("A") == NONE
