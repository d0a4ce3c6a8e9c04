from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.gpu_index import GpuIndex
from punica_scheduler.core.request import RequestRecord
from punica_serve.protocol import AdapterRef, AssignmentId, GpuInfo, Request, SamplingParams


def _waiting(num_tokens: int) -> RequestRecord:
    """A request that has so many tokens with its next one."""
    return RequestRecord.of("f", 0, Request("waits", 0, (1,) * (num_tokens - 1), SamplingParams()))


class Gpus:
    """GPUs of four places and 8 pages of 4 tokens, by UUID."""

    def __init__(self, uuids: str) -> None:
        self.index = GpuIndex()
        self.gpus = {uuid: GpuRecord(GpuInfo(uuid, "cpu", 4, 4, 8, {}), "runner") for uuid in uuids}
        for gpu in self.gpus.values():
            self.index.add(gpu)
        self.num_assignments = 0

    def run(self, uuid: str, *, prompt: int = 1, digest: str | None = None) -> AssignmentId:
        self.num_assignments += 1
        assignment = AssignmentId(1, self.num_assignments)
        adapter = AdapterRef(digest, "/adapter", 1, {}) if digest else None
        request = Request(f"r{self.num_assignments}", 0, (1,) * prompt, SamplingParams(), adapter)
        record = RequestRecord.of("f", 0, request)
        record.begin_assignment(assignment, uuid, 0)
        self.gpus[uuid].add(assignment, record)
        self.update(uuid, digest)
        return assignment

    def end(self, uuid: str, assignment: AssignmentId) -> None:
        self.gpus[uuid].remove(assignment, 0)
        self.update(uuid)

    def expect_end(self, uuid: str, assignment: AssignmentId) -> None:
        self.gpus[uuid].expect_ends([self.gpus[uuid].working_set[assignment.counter]])
        self.update(uuid)

    def update(self, uuid: str, digest: str | None = None) -> None:
        self.index.update(self.gpus[uuid], digest)
        self.index.check_invariants(self.gpus.values())

    def largest_first(self, num_tokens: int = 1) -> str:
        found = "".join(gpu.uuid for gpu in self.index.largest_first(_waiting(num_tokens)))
        self.index.check_invariants(self.gpus.values())
        return found

    def soonest_first(self, num_tokens: int = 1) -> str:
        found = "".join(gpu.uuid for gpu in self.index.soonest_first(_waiting(num_tokens)))
        self.index.check_invariants(self.gpus.values())
        return found

    def improved(self) -> str:
        return "".join(sorted(gpu.uuid for gpu in self.index.take_improved()))


def test_the_largest_working_sets_come_first_then_the_highest_uuids() -> None:
    gpus = Gpus("ABCD")
    assert gpus.largest_first() == "DCBA"
    gpus.run("B")
    gpus.run("C")
    gpus.run("B")
    assert gpus.largest_first() == "BCDA"
    assert "".join(gpu.uuid for gpu in gpus.index.smallest_first(_waiting(1))) == "DACB"


def test_full_batches_are_left_out_until_they_have_a_place() -> None:
    gpus = Gpus("AB")
    assignments = [gpus.run("A") for _ in range(4)]
    assert gpus.largest_first() == "B"
    gpus.end("A", assignments[0])
    assert gpus.largest_first() == "AB"


def test_full_batches_of_which_one_request_is_about_to_end_stand_apart() -> None:
    gpus = Gpus("ABC")
    running = {uuid: [gpus.run(uuid) for _ in range(4)] for uuid in "AB"}
    assert (gpus.soonest_first(), gpus.improved()) == ("", "ABC")
    for uuid in "BA":
        gpus.expect_end(uuid, running[uuid][0])
    assert (gpus.largest_first(), gpus.soonest_first(), gpus.improved()) == ("C", "BA", "AB")
    gpus.run("B")
    assert gpus.soonest_first() == "A", "the place has its next request"
    gpus.end("A", running["A"][0])
    assert (gpus.largest_first(), gpus.soonest_first(), gpus.improved()) == ("AC", "", "A")


def test_those_about_to_have_a_place_are_left_out_while_they_lack_pages() -> None:
    gpus = Gpus("AB")
    running = {uuid: [gpus.run(uuid, prompt=prompt) for _ in range(4)] for uuid, prompt in {"A": 1, "B": 4}.items()}
    for uuid in "BA":
        gpus.expect_end(uuid, running[uuid][0])
    assert (gpus.soonest_first(), gpus.soonest_first(100), gpus.soonest_first(16)) == ("A", "", "A")
    gpus.gpus["B"].drop(running["B"][1])
    gpus.gpus["B"].remove(running["B"][1], 0)
    gpus.run("B")
    assert gpus.soonest_first() == "BA", "it has told so first"


def test_those_without_pages_are_left_out_until_they_have_some() -> None:
    gpus = Gpus("AB")
    assignment = gpus.run("A", prompt=20)
    assert gpus.largest_first(12) == "B"
    assert gpus.largest_first(8) == "AB"
    gpus.end("A", assignment)
    assert gpus.largest_first(12) == "B", "its start is on its way, and its pages with it"
    gpus.gpus["A"].drop(assignment)
    gpus.update("A")
    assert gpus.largest_first(12) == "BA"


def test_a_file_searched_in_vain_is_not_searched_again() -> None:
    gpus = Gpus("AB")
    gpus.run("A", prompt=20)
    gpus.run("B", prompt=20)
    assert gpus.largest_first(12) == ""
    assert gpus.index._files[1].bound.num_tokens == 8


def test_what_has_improved_is_told_once() -> None:
    gpus = Gpus("AB")
    assert gpus.improved() == "AB"
    assignment = gpus.run("A")
    assert gpus.improved() == ""
    gpus.end("A", assignment)
    assert gpus.improved() == "A"
    assert gpus.improved() == ""


def test_a_gpu_has_improved_for_the_others_of_an_adapter_that_it_begins_to_run() -> None:
    gpus = Gpus("AB")
    gpus.improved()
    gpus.run("A", digest="x")
    assert gpus.improved() == "A"
    gpus.run("A", digest="x")
    assert gpus.improved() == ""


def test_a_draining_gpu_is_not_there() -> None:
    gpus = Gpus("AB")
    gpus.gpus["A"].is_draining = True
    gpus.index.discard(gpus.gpus["A"])
    gpus.update("A")
    assert (gpus.largest_first(), gpus.improved()) == ("B", "B")
    assert [gpu.uuid for gpu in gpus.index.by_uuid()] == ["B"]


def test_all_are_gone_round_from_any_place() -> None:
    gpus = Gpus("ABC")
    assert "".join(gpu.uuid for gpu in gpus.index.by_uuid(2)) == "CAB"
