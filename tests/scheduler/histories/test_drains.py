"""In any history nothing starts on a GPU that is drained, and a runner is told once, as soon as its GPUs are empty."""

from cluster_history import HISTORIES, ClusterHistory
from punica_scheduler.core import events
from punica_scheduler.core.actions import Action, RunnerDrained, Start


class DrainHistory(ClusterHistory):
    def __init__(self) -> None:
        super().__init__()
        #: (incarnation of the scheduler, runner) of those that were told.
        self.told: set[tuple[int, str]] = set()

    def observe(self, event: events.Event, actions: list[Action]) -> None:
        if isinstance(event, events.RunnerLost | events.RunnerJoined):
            self.told.discard((self.cluster.incarnation, event.runner_id))
        for action in actions:
            match action:
                case Start(gpu_uuid=uuid):
                    assert not self.cluster.is_draining(uuid), f"{action} where none may"
                case RunnerDrained(runner_id):
                    told = (self.cluster.incarnation, runner_id)
                    assert told not in self.told, f"{runner_id} knows already"
                    self.told.add(told)
        self.check_told()

    def check_told(self) -> None:
        gpus = self.cluster.scheduler.snapshot(0).gpus
        told = {runner_id for incarnation, runner_id in self.told if incarnation == self.cluster.incarnation}
        busy = {gpu.runner_id for gpu in gpus if gpu.working_set}
        assert told == self.cluster.drained_runners - busy


DrainHistory.TestCase.settings = HISTORIES
TestDrains = DrainHistory.TestCase
