"""A worker without an engine. It answers every command with a report, and misbehaves on demand.

Behaviours: "serve"; before READY: "hang", "die", "permanent" (failure), "grandchild" (dies while a child of its own
holds its pipes); after it: "deaf" (ignores SIGTERM and the end of its pipe), "garbage" (sends no message), "stale"
(ignores the epoch of a Reset), "mute" (answers no ping), "stuck" (makes no turn once it has a request). A StartRequest
whose request_id is "exit" ends the process with code 3, and "fail" with last words. It fetches what it is to warm, and
says that it has the folder that it got, or has lost what it did not get or is to forget.
"""

import argparse
import os
import signal
import subprocess
import sys
import time

from punica_runner.pipes import WorkerPipe
from punica_serve.protocol import (
    AdapterFetched,
    AdaptersCached,
    FetchAdapter,
    Forget,
    GpuInfo,
    Ping,
    Pong,
    Reset,
    StartRequest,
    StepReport,
    SupervisorToWorker,
    Warm,
    WireError,
    WorkerFailed,
    WorkerReady,
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--uuid")
    parser.add_argument("--behaviour")
    parser.add_argument("--read-fd", type=int)
    parser.add_argument("--write-fd", type=int)
    options = parser.parse_args()
    if options.behaviour == "grandchild":
        subprocess.Popen(["sleep", "5"], pass_fds=(options.read_fd, options.write_fd))
        sys.exit(4)
    pipe = WorkerPipe(options.read_fd, options.write_fd, SupervisorToWorker)
    before_ready(options.behaviour, pipe)
    pipe.send(WorkerReady(GpuInfo(options.uuid, "cpu", 32, 16, 100, {"qkv": 8})))
    if options.behaviour == "garbage":
        os.write(options.write_fd, b"\x00\x00\x00\x03abc")
    serve(pipe, options)


def before_ready(behaviour: str, pipe: WorkerPipe) -> None:
    if behaviour == "hang":
        time.sleep(60)
    if behaviour == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behaviour == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "permanent":
        pipe.send(WorkerFailed(WireError("model_rejected", "no config.json in /models/none"), permanent=True))
        sys.exit(2)


def serve(pipe: WorkerPipe, options: argparse.Namespace) -> None:
    epoch = seq = num_turns = 0
    for command in pipe:
        if isinstance(command, Ping):
            num_turns += options.behaviour != "stuck" or not seq
            if options.behaviour != "mute":
                pipe.send(Pong(command.number, num_turns))
            continue
        if isinstance(command, Warm):
            pipe.send(FetchAdapter(command.adapter))
            continue
        if isinstance(command, Forget | AdapterFetched):
            pipe.send(cached(options.uuid, command))
            continue
        counters: tuple[int, ...] = ()
        if isinstance(command, Reset):
            seq = 0
            epoch = 0 if options.behaviour == "stale" else command.epoch
        else:
            seq = command.seq
        if isinstance(command, StartRequest):
            if command.request.request_id == "exit":
                os._exit(3)
            if command.request.request_id == "fail":
                pipe.send(WorkerFailed(WireError("internal_error", "RuntimeError: a bad step"), permanent=False))
                sys.exit(1)
            counters = (command.assignment.counter,)
        pipe.send(report(options.uuid, epoch, seq, counters))
    while options.behaviour == "deaf":
        time.sleep(60)


def cached(uuid: str, message: Forget | AdapterFetched) -> AdaptersCached:
    if isinstance(message, Forget):
        return AdaptersCached(uuid, left=(message.digest,))
    if message.folder is not None:
        return AdaptersCached(uuid, came=(message.folder,))
    assert message.error is not None
    return AdaptersCached(uuid, left=(message.error.code, "for good" if message.is_permanent else "for now"))


def report(uuid: str, epoch: int, seq: int, counters: tuple[int, ...]) -> StepReport:
    """A report that gives each of these assignments its first token, which is this process's id."""
    return StepReport(
        gpu_uuid=uuid,
        epoch=epoch,
        step=1,
        applied_seq=seq,
        incarnation=1,
        assignments=counters,
        positions=(0,) * len(counters),
        token_ids=(os.getpid(),) * len(counters),
        free_kv_pages=100,
        batch_size=len(counters),
        num_prefill_tokens=0,
        num_adapters=0,
        duration_s=0.0,
    )


if __name__ == "__main__":
    main()
