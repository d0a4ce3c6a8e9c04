import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.registry import known_implementations

from blank_weights import write_blank_weights
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.checkpoint import tensor_shapes
from punica_serve.base_model.config_json import read_model_config

Cli = Callable[..., tuple[int, str, str]]
WriteConfig = Callable[..., Path]


@pytest.fixture
def good_adapter(tmp_path: Path, model_folder: Path) -> Path:
    return write_random_adapter(tmp_path / "good", read_model_config(model_folder), rank=12, seed=0)


def test_good_adapters_are_listed_with_rank_and_digest(cli: Cli, write_config: WriteConfig, good_adapter: Path) -> None:
    exit_code, stdout, stderr = cli("config", "check", str(write_config(adapters={"fine": "good"})))
    assert (exit_code, stderr) == (0, "")
    (row,) = [line.split() for line in stdout.splitlines() if "fine" in line]
    assert {"fine", "12", "ok"} < set(row)


def test_the_adapters_that_would_be_served_are_told(cli: Cli, write_config: WriteConfig, model_folder: Path) -> None:
    _, stdout, _ = cli("config", "check", str(write_config()))
    assert "ranks to 128 (`engine.max_lora_rank`)" in stdout and "need `engine.lora_vocabulary: true`" in stdout
    engine = {"model": str(model_folder), "max_lora_rank": 16, "lora_vocabulary": True}
    _, stdout, _ = cli("config", "check", str(write_config(engine=engine)))
    assert "ranks to 16 " in stdout and "embed_tokens, lm_head\n" in stdout and "need" not in stdout


def test_adapters_beyond_the_limits_are_refused_with_the_setting(
    cli: Cli, write_config: WriteConfig, model_folder: Path, good_adapter: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = {"model": str(model_folder), "max_lora_rank": 8}
    exit_code, _, _ = cli("config", "check", str(write_config(engine=engine, adapters={"fine": "good"})))
    assert exit_code == 1 and "has rank 12 in " in caplog.text and "raise `engine.max_lora_rank` to 12" in caplog.text


def test_a_refused_adapter_is_named_with_the_reason_beside_good_ones(
    cli: Cli, write_config: WriteConfig, good_adapter: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exit_code, stdout, _ = cli("config", "check", str(write_config(adapters={"fine": "good", "broken": "nowhere"})))
    assert exit_code == 1
    rows = {line.split()[1]: line for line in stdout.splitlines() if line.startswith("│") and line.split()[1] != "│"}
    assert " ok " in rows["fine"]
    assert "refused:" in rows["broken"]
    assert "'broken'" in caplog.text and "no such folder" in caplog.text


def test_a_gpu_need_not_be_on_the_host_that_checks(cli: Cli, write_config: WriteConfig) -> None:
    exit_code, stdout, _ = cli("config", "check", str(write_config(runner={"devices": ["cuda:0", "cuda:99"]})))
    assert exit_code == 0 and "devices cuda:0, cuda:99: checked at the start" in stdout


def test_defaults_of_the_model_that_are_not_implemented_are_named(
    cli: Cli, write_config: WriteConfig, model_folder: Path
) -> None:
    (model_folder / "generation_config.json").write_text('{"num_beams": 4, "bad_words_ids": [[1]], "typical_p": 0.5}')
    exit_code, stdout, _ = cli("config", "check", str(write_config(engine={"model": str(model_folder)})))
    assert exit_code == 0
    assert "not implemented: `num_beams` of generation_config.json is 4\n" in stdout
    assert "not implemented: `bad_words_ids` of generation_config.json is [[1]]\n" in stdout
    assert "typical_p" not in stdout, "it draws nothing"


def test_a_name_is_not_read_as_markup(cli: Cli, write_config: WriteConfig, good_adapter: Path) -> None:
    exit_code, stdout, _ = cli("config", "check", str(write_config(adapters={"x[/b]": "good", "[red]y": "good"})))
    assert exit_code == 1
    assert "x[/b]" in stdout and "[red]y" in stdout


@pytest.mark.parametrize("engine", [{}, {"model": "nowhere"}, {"model": "weightless"}, {"max_context": 1 << 20}])
def test_a_wrong_config_or_model_is_refused(
    cli: Cli, write_config: WriteConfig, engine: dict[str, Any], model_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(model_folder, tmp_path / "weightless", ignore=shutil.ignore_patterns("*.safetensors"))
    engine = {"model": str(model_folder), **engine} if engine else {}
    exit_code, stdout, stderr = cli("config", "check", str(write_config(engine=engine)))
    assert (exit_code, stdout) == (2, "")
    assert stderr.startswith("punica-serve: ") and stderr.count("\n") == 1


def test_two_servers_on_one_port_are_refused(cli: Cli, write_config: WriteConfig) -> None:
    config = write_config(scheduler={"port": 8000}, frontend={"port": 8000})
    exit_code, _, stderr = cli("config", "check", str(config))
    assert exit_code == 2 and "`scheduler.port` and `frontend.port` are both 8000" in stderr


@pytest.mark.parametrize(
    ("profile", "says"),
    [("h200", "no performance profile 'h200'; give one of a10-7b-padded"), ("x.yaml", "x.yaml can't be read")],
)
def test_an_unknown_performance_profile_is_refused(
    cli: Cli, write_config: WriteConfig, profile: str, says: str
) -> None:
    exit_code, _, stderr = cli("config", "check", str(write_config(simulation={"profile": profile})))
    assert exit_code == 2 and says in stderr


@pytest.mark.parametrize("setting", ["attention_times", "exchange_times"])
def test_a_file_of_times_that_cannot_be_used_is_refused(
    cli: Cli, write_config: WriteConfig, model_folder: Path, tmp_path: Path, setting: str
) -> None:
    config = write_config(engine={"model": str(model_folder), setting: "times.yaml"})
    exit_code, _, stderr = cli("config", "check", str(config))
    assert exit_code == 2 and f"`engine.{setting}`: file {tmp_path / 'times.yaml'} can't be read" in stderr
    (tmp_path / "times.yaml").write_text("speeds: 1\n")
    exit_code, _, stderr = cli("config", "check", str(config))
    assert exit_code == 2 and "times.yaml: `speeds`: is not a known" in stderr


def test_a_host_without_torch_checks_a_config() -> None:
    modules = "punica_serve.engine.ranks.exchange_choice, punica_serve.engine.memory.batch_fit"
    code = f"import sys; import {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_dummy_weights_need_no_files(cli: Cli, write_config: WriteConfig, model_folder: Path) -> None:
    (model_folder / "model.safetensors").unlink()
    engine = {"model": str(model_folder), "load_format": "dummy"}
    assert cli("config", "check", str(write_config(engine=engine)))[0] == 0


def test_files_of_tls_that_are_not_there_are_named(cli: Cli, write_config: WriteConfig) -> None:
    exit_code, _, stderr = cli("config", "check", str(write_config(tls={"cert": "c", "key": "k", "ca": "a"})))
    assert exit_code == 2 and "`tls.cert`: can't read " in stderr
    exit_code, _, stderr = cli("config", "check", str(write_config(frontend={"tls": {"cert": "c", "key": "k"}})))
    assert exit_code == 2 and "`frontend.tls.key`: can't read " in stderr


@pytest.mark.parametrize("folder", ["taken", "/proc", "/proc/x"])
def test_a_data_folder_that_cannot_be_written_is_refused(
    cli: Cli, write_config: WriteConfig, tmp_path: Path, folder: str
) -> None:
    (tmp_path / "taken").touch()
    exit_code, _, stderr = cli("config", "check", str(write_config(data_folder=folder)))
    assert exit_code == 2
    assert f"`data_folder` {tmp_path / folder} is not a folder that can be written to: " in stderr


def test_a_store_folder_that_cannot_be_written_is_refused(cli: Cli, write_config: WriteConfig, tmp_path: Path) -> None:
    (tmp_path / "store").symlink_to(tmp_path / "not mounted")
    for settings in ({"store": {"url": "/proc/x"}}, {"data_folder": str(tmp_path)}):
        exit_code, _, stderr = cli("config", "check", str(write_config(**settings)))
        assert exit_code == 2 and "`store.url` " in stderr and "is not a folder that can be written to: " in stderr
    assert cli("config", "check", str(write_config(store={"url": "file:///adapters"})))[0] == 0


def test_a_store_whose_package_is_not_installed_is_refused(
    cli: Cli, write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = {"class": "no_such_package.FileSystem", "err": "Install no_such_package to read it"}
    monkeypatch.setitem(known_implementations, "lacking", lacking)
    exit_code, _, stderr = cli("config", "check", str(write_config(store={"url": "lacking://bucket/x"})))
    assert exit_code == 2
    assert "`store.url`: lacking:// needs a package that is not installed: Install no_such_package" in stderr


@pytest.mark.parametrize(
    ("store", "setting"),
    [
        ({"options": {"client_kwargs": {"secret": {"env": "NO_SUCH_KEY"}}}}, "store.options"),
        (
            {"sources": {"credentials": {"s3://team/": {"key": {"env": "NO_SUCH_KEY"}}}}},
            "store.sources.credentials.s3://team/",
        ),
    ],
)
def test_a_secret_that_is_not_set_is_refused(
    cli: Cli, write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch, store: dict[str, Any], setting: str
) -> None:
    path = str(write_config(store={"url": "file:///adapters", **store}))
    exit_code, _, stderr = cli("config", "check", path)
    assert exit_code == 2
    assert f"`{setting}` needs the environment variable NO_SUCH_KEY, which is not set; set it" in stderr
    monkeypatch.setenv("NO_SUCH_KEY", "is there")
    assert cli("config", "check", path)[0] == 0


def test_a_secrets_file_lies_beside_the_config(cli: Cli, write_config: WriteConfig, tmp_path: Path) -> None:
    path = str(write_config(store={"url": "file:///adapters", "options": {"secret": {"file": "s3-secret"}}}))
    exit_code, _, stderr = cli("config", "check", path)
    assert exit_code == 2 and f"`store.options` needs the file {tmp_path / 's3-secret'}, which can't be read" in stderr
    (tmp_path / "s3-secret").write_text("is there")
    assert cli("config", "check", path)[0] == 0


def test_flashinfer_on_a_cpu_is_refused(cli: Cli, write_config: WriteConfig, model_folder: Path) -> None:
    engine = {"model": str(model_folder), "attention": "flashinfer"}
    exit_code, _, stderr = cli("config", "check", str(write_config(engine=engine)))
    assert exit_code == 2 and "`engine.attention` is flashinfer" in stderr and "take auto" in stderr
    assert cli("config", "check", str(write_config(engine=engine, runner={"devices": ["cuda:0"]})))[0] == 0


def test_dummies_larger_than_the_lora_pool_are_refused(cli: Cli, write_config: WriteConfig, model_folder: Path) -> None:
    config = write_config(
        engine={"model": str(model_folder), "num_lora_pages": 1}, dummy_adapters={"count": 2, "rank": 16}
    )
    exit_code, _, stderr = cli("config", "check", str(config))
    assert exit_code == 2 and "raise `engine.num_lora_pages` to 2 or more" in stderr


def test_a_scale_hook_must_be_there_and_executable(cli: Cli, write_config: WriteConfig, tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    path = str(write_config(scheduler={"scale": {"hook": [str(hook)]}}))
    missing = cli("config", "check", path)
    hook.write_text("#!/bin/sh\n")
    not_executable = cli("config", "check", path)
    for exit_code, _, stderr in (missing, not_executable):
        assert exit_code == 2 and f"`scheduler.scale.hook`: {hook} is not a command" in stderr
    hook.chmod(0o700)
    assert cli("config", "check", path)[0] == 0


def test_a_scale_hook_is_found_by_its_name(cli: Cli, write_config: WriteConfig) -> None:
    assert cli("config", "check", str(write_config(scheduler={"scale": {"hook": ["cat"]}})))[0] == 0


def _whole_on_every_rank(stdout: str) -> float:
    """KiB of LoRA pages."""
    found = re.search(r"\(([\d.]+) (.)iB whole on every rank", stdout)
    assert found is not None
    return float(found[1]) * {"K": 1, "M": 1024}[found[2]]


def test_the_bytes_of_a_rank_are_told(cli: Cli, write_config: WriteConfig) -> None:
    runner = {"devices": ["cpu,cpu", "cpu,cpu"]}
    exit_code, stdout, _ = cli("config", "check", str(write_config(runner=runner)))
    assert exit_code == 0
    (line,) = [line for line in stdout.splitlines() if line.startswith("group of ")]
    divided = cli(
        "config", "check", str(write_config(runner=runner, engine={"model": "model", "divide_lora_from": 16}))
    )[1]
    assert _whole_on_every_rank(divided) < _whole_on_every_rank(stdout)
    assert re.fullmatch(
        r"group of 2: each rank has [\d.]+ KiB of [\d.]+ KiB of weights, [\d.]+ .iB of LoRA pages \([\d.]+ .iB whole on"
        r" every rank, [\d.]+ .iB divided\), and (\d+) bytes of (\d+) bytes of KvCache a token",
        line,
    )


def test_hosts_of_a_group_are_told(cli: Cli, write_config: WriteConfig) -> None:
    runner = {"hosts": 2, "rendezvous": "10.0.0.1:29500"}
    exit_code, stdout, _ = cli("config", "check", str(write_config(runner=runner)))
    assert exit_code == 0
    assert "group of 2 on 2 hosts, whose exchanges are NCCL's or gloo's: each rank has " in stdout
    assert "what the group's hosts send each other is not encrypted; its network must be trusted" in stdout


@pytest.mark.parametrize(("cold_start", "is_told"), [("cpu_assist", True), ("layerwise", False)])
def test_a_group_that_divides_a_is_told_to_go_without_cpu_processes(
    cli: Cli, write_config: WriteConfig, cold_start: str, is_told: bool
) -> None:
    engine = {"model": "model", "divide_lora_from": 16, "cold_start": cold_start}
    _, stdout, _ = cli("config", "check", str(write_config(runner={"devices": ["cpu,cpu"]}, engine=engine)))
    told = f"`engine.cold_start: {cold_start}` goes on without CPU processes: ranks add up x A"
    assert (told in stdout) == is_told


def test_key_value_heads_that_ranks_share_are_told(cli: Cli, write_config: WriteConfig, model_folder: Path) -> None:
    file = model_folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_key_value_heads": 1}))
    write_blank_weights(model_folder, tensor_shapes(read_model_config(model_folder)))
    _, stdout, _ = cli("config", "check", str(write_config(runner={"devices": ["cpu,cpu"]})))
    assert "not divided by 2: 1 key-value head, each on 2 ranks" in stdout


def test_a_group_that_does_not_divide_the_model_is_refused(cli: Cli, write_config: WriteConfig) -> None:
    exit_code, _, stderr = cli("config", "check", str(write_config(runner={"devices": ["cpu,cpu,cpu"]})))
    assert exit_code == 2
    assert "a group of 3 ranks can't divide this model: `num_attention_heads` of" in stderr
