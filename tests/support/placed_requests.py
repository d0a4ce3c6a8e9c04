"""GPUs with working sets that a test fills by hand, without a scheduler."""

from itertools import count

from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.gpu_index import GpuIndex
from punica_scheduler.core.placement import Placement
from punica_scheduler.core.request import RequestRecord
from punica_serve.prefill_chunks import WHOLE_PROMPTS, PrefillBudget
from punica_serve.protocol import AdapterRef, AssignmentId, GpuInfo, Request, SamplingParams, Slo


class PlacedRequests:
    """GPUs by UUID, each with room for 64 requests, pages of 4 tokens and adapters of q_proj."""

    def __init__(
        self,
        uuids: str,
        *,
        batch: int = 64,
        kv_pages: int = 1024,
        lora_pages: int = 1024,
        prefill_budget: PrefillBudget = WHOLE_PROMPTS,
    ) -> None:
        self.index = GpuIndex()
        self.gpus: dict[str, GpuRecord] = {}
        self._numbers = count(1)
        for uuid in uuids:
            gpu = GpuRecord(GpuInfo(uuid, "cpu", batch, 4, kv_pages, {"qkv": lora_pages}), "runner", prefill_budget)
            self.gpus[uuid] = gpu
            self.index.add(gpu)

    def request(
        self,
        *,
        rank: int = 0,
        digest: str | None = None,
        prompt: int = 3,
        max_tokens: int = 100,
        slo: Slo | None = None,
    ) -> RequestRecord:
        """A request whose adapter no other has, unless ``digest`` names one; rank 0 is the base model."""
        number = next(self._numbers)
        adapter = AdapterRef(digest or f"adapter {number}", "", 1, {"q_proj": rank}) if rank else None
        request = Request(f"r{number}", number, (7,) * prompt, SamplingParams(max_tokens=max_tokens), adapter, slo=slo)
        return RequestRecord.of("frontend", number, request)

    def run(self, uuid: str, record: RequestRecord) -> int:
        """Places a request; returns its counter."""
        counter = next(self._numbers)
        self.gpus[uuid].add(AssignmentId(1, counter), record)
        self.index.update(self.gpus[uuid], record.digest)
        return counter

    def begin(self, uuid: str, counter: int) -> None:
        """The request got its first token."""
        self.gpus[uuid].load_sums.begun(counter, self.index.now_ns)
        self.index.update(self.gpus[uuid])

    def step(self, uuid: str, seconds: float) -> None:
        """A step of decodes takes so long."""
        self.index.now_ns += round(seconds * 1e9)
        gpu = self.gpus[uuid]
        gpu.token_ns = self.index.now_ns
        gpu.load_sums.slack.stepped()
        self.index.update(gpu)

    def end_step(self, uuid: str) -> None:
        """The GPU begins its next step."""
        self.gpus[uuid].num_steps += 1
        self.index.update(self.gpus[uuid])

    def end(self, uuid: str, counter: int) -> None:
        record = self.gpus[uuid].working_set[counter]
        self.gpus[uuid].remove(AssignmentId(1, counter), 0)
        self.index.update(self.gpus[uuid], record.digest)

    def cache(self, uuid: str, digest: str) -> None:
        """The worker has the adapter in host memory from now on."""
        self.gpus[uuid].cached.add(digest)
        self.index.holders.update(self.gpus[uuid], [digest])

    def order(self, placement: Placement, record: RequestRecord) -> str:
        """The UUIDs of its candidates."""
        return "".join(gpu.uuid for gpu in placement.candidates(record, self.index))
