from punica_scheduler.core.adapter_holders import AdapterHolders
from punica_scheduler.core.gpu import GpuRecord
from punica_serve.protocol import GpuInfo


def test_an_adapter_is_held_until_it_is_neither_on_the_gpu_nor_in_host_memory() -> None:
    holders, gpu = AdapterHolders(), GpuRecord(GpuInfo("A", "cpu", 4, 4, 8, {"qkv": 1}), "runner")
    gpu.resident = ("x", "y")
    holders.update(gpu, gpu.resident)
    gpu.cached.add("x")
    holders.update(gpu, ["x"])
    gpu.resident = ()
    holders.update(gpu, ["x", "y"])
    holders.check_invariants([gpu])
    assert holders.of("x") == {gpu} and not holders.of("y") and not holders.of(None)
    gpu.cached.clear()
    holders.update(gpu, ["x", "never there"])
    assert not holders.of("x")
    holders.check_invariants([gpu])


def test_a_gpu_that_is_gone_holds_nothing() -> None:
    holders = AdapterHolders()
    gpus = [GpuRecord(GpuInfo(uuid, "cpu", 4, 4, 8, {"qkv": 1}), "runner") for uuid in "AB"]
    for gpu in gpus:
        gpu.resident, gpu.cached = ("x",), {"x", "y"}
        holders.update(gpu, ["x", "y"])
    holders.discard(gpus[0])
    assert holders.of("x") == holders.of("y") == {gpus[1]}
    holders.check_invariants(gpus[1:])
