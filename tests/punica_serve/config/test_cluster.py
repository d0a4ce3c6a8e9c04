import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.cluster import load_config, parse_config
from punica_serve.config.engine_section import EngineConfig
from punica_serve.errors import ConfigError

CONFIGS = Path(__file__).parents[3] / "configs"


@pytest.fixture
def model() -> ModelConfig:
    return read_model_config(load_config(CONFIGS / "demo.yaml").engine.model)


@pytest.mark.parametrize(
    ("name", "devices"),
    [("demo.yaml", ("cpu", "cpu")), ("gpu.yaml", ("cuda:0",)), ("demo-tp2.yaml", ("cpu,cpu", "cpu,cpu"))],
)
def test_our_configs_are_valid_and_point_into_the_package(name: str, devices: tuple[str, ...]) -> None:
    config = load_config(CONFIGS / name)
    assert config.engine.served_name == "numbers"
    assert config.engine.model.parts[-2:] == ("demo", "model")
    assert set(config.adapters) == {"roman", "english", "french", "binary", "hex"}
    assert config.runner.workers == devices


def test_folders_are_relative_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "c.yaml"
    path.parent.mkdir()
    path.write_text("engine: {model: ../base}\nadapters: {x: /a/x, y: y}\n")
    config = load_config(path)
    assert config.engine.model == tmp_path / "base"
    assert config.adapters == {"x": Path("/a/x"), "y": tmp_path / "sub" / "y"}


def test_the_base_is_called_by_its_folder_unless_named(tmp_path: Path) -> None:
    assert parse_config({"engine": {"model": "m/base"}}, source="x", folder=tmp_path).engine.served_name == "base"


def test_the_dtype_is_the_checkpoints_unless_named(model: ModelConfig) -> None:
    model = dataclasses.replace(model, dtype="float16")
    assert EngineConfig(model=Path("m")).dtype_of(model) == "float16"
    assert EngineConfig(model=Path("m"), dtype="bfloat16").dtype_of(model) == "bfloat16"


def test_the_context_is_the_models_unless_a_shorter_is_named(model: ModelConfig) -> None:
    assert EngineConfig(model=Path("m")).context_of(model) == 2048
    assert EngineConfig(model=Path("m"), max_context=16).context_of(model) == 16
    with pytest.raises(ConfigError, match=r"`engine\.max_context` is 2049, but the model's limit is 2048"):
        EngineConfig(model=Path("m"), max_context=2049).context_of(model)


def test_a_programs_own_settings_are_checked_like_a_files(tmp_path: Path) -> None:
    config = parse_config({"engine": {"model": "base", "page_size": 8}}, source="LLM", folder=tmp_path)
    assert (config.engine.model, config.engine.page_size) == (tmp_path / "base", 8)
    with pytest.raises(
        ConfigError, match=r"LLM: `engine\.page_sise`: is not a known setting; did you mean `engine\.page_size`\?"
    ):
        parse_config({"engine": {"model": "base", "page_sise": 8}}, source="LLM", folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("engine: 2024-99-99", "is not valid YAML: month must be in 1..12"),
        ("engine: " + 2000 * "[", "is not valid YAML: its values are nested too deeply"),
        ('engine: !!int ""', "is not valid YAML"),
        (
            "engine:\n  model: x\n bad: y",
            "is not valid YAML: line 3, column 2: while parsing a block mapping, expected",
        ),
        ("engine: \x01", "is not valid YAML: character 9: special characters are not allowed"),
        ("- 1", "must be a mapping"),
        ("engine: {model: m}\nadapters:\n  a: x\n  a: y", "line 4, column 3: key 'a' twice"),
        ("runner: {}", "`engine`: is missing$"),
        (
            "engin: {model: m}",
            r"`engin`: is not a known setting; did you mean `engine`\?\n.*: `engine`: is missing$",
        ),
        ("engine: {page_size: 3}", "`engine.model`: is missing$"),
        ("engine: {model: ~nosuchuser/x}", "`engine.model`: Could not determine home directory., got '~nosuchuser/x'"),
        ("engine: {model: loop}", "`engine.model`: Symlink loop"),
        ('engine: {model: "nul\\0"}', "`engine.model`: embedded null byte"),
        ('engine: {model: ""}', "`engine.model`: must not be empty, got ''"),
        ('engine: {model: m}\nadapters: {x: ""}', "`adapters.x`: must not be empty"),
        ('engine: {model: m, model_name: ""}', "`engine.model_name`: must be a non-empty string, got ''"),
        ('engine: {model: m}\nrunner: {devices: [""]}', "`runner.devices.0`: must be cpu, .* got ''$"),
        ("engine: {model: m}\nrunner: {devices: [cpu, gpu9]}", "`runner.devices.1`: .* cuda:N .* got 'gpu9'$"),
        ("engine: {model: m}\nrunner: {devices: [cuda]}", "`runner.devices.0`: .* got 'cuda'$"),
        ('engine: {model: m}\nrunner: {devices: ["cuda:0,cuda:0"]}', "`runner.devices.0`: names cuda:0 twice"),
        ('engine: {model: m}\nrunner: {devices: ["cpu,cuda:0"]}', "`runner.devices.0`: mixes kinds of devices"),
        (
            "engine: {model: m}\nrunner: {devices: [cpu], tensor_parallel: 2}",
            "2 does not divide 1 `devices`; name a multiple of 2, or change `tensor_parallel`",
        ),
        ('engine: {model: m}\nrunner: {devices: ["cuda:0", "cuda:0"], tensor_parallel: 2}', "names cuda:0 twice"),
        ('engine: {model: m}\nrunner: {devices: ["cpu,cpu", "cpu,cpu"], tensor_parallel: 2}', "not both"),
        ("engine: {model: m}\nrunner: {hosts: 2}", "`hosts` is 2 and `rendezvous` is not set"),
        ('engine: {model: m}\nrunner: {rendezvous: "a:1"}', "`rendezvous` is for groups over several hosts"),
        ('engine: {model: m}\nrunner: {hosts: 2, rendezvous: "0.0.0.0:1"}', "no address that other hosts reach"),
        ('engine: {model: m}\nrunner: {hosts: 2, rendezvous: "10.0.0.1"}', "runner.rendezvous.*must be HOST:PORT"),
        (
            'engine: {model: m}\nrunner: {hosts: 2, rendezvous: "a:1", devices: [cpu, cpu]}',
            "must be one group, not 2 workers; set `tensor_parallel` to 2",
        ),
        (
            'engine: {model: m}\nrunner: {hosts: 1000000000, rendezvous: "a:1"}',
            "`runner.hosts`: must be 64 or less, got",
        ),
        (
            'engine: {model: m}\nrunner: {hosts: 33, rendezvous: "a:1", devices: ["cpu,cpu"]}',
            r"`hosts` is 33, each with `devices` \['cpu,cpu'\]: a group has at most 64 devices, not 66$",
        ),
        ('engine: {model: m}\nrunner: {hosts: 2, rendezvous: "a:1", devices: [simulated]}', "simulated devices need"),
        (
            'engine: {model: m, exchange: fused}\nrunner: {hosts: 2, rendezvous: "a:1"}',
            r"^\S+: `runner.hosts` is 2 and `engine.exchange` is fused, whose kernel .* set it to auto or nccl$",
        ),
        ('engine: {model: m}\nrunner: {devices: ["cuda:0,cuda:1", "cuda:1"]}', "`devices` names cuda:1 twice"),
        (
            "engine: {model: m, exchange: two_shot}",
            "`engine.exchange`: must be 'auto', 'nccl', 'fused' or 'flashinfer', got 'two_shot'",
        ),
        (
            'engine: {model: m}\nrunner: {devices: ["cpu,cpu", "cpu"]}',
            "`devices` has workers of different sizes: 'cpu,cpu' has 2, 'cpu' has 1; make all groups equal",
        ),
        ("engine: {model: m, max_batch_size: many}", "must be a whole number of 1 or more, or auto, got 'many'"),
        ("engine: {model: m, num_lora_pages: many}", "must be a whole number, or auto, got 'many'"),
        ('engine: {model: m}\nfrontend: {host: ""}', "`frontend.host`"),
        ("engine: {model: m, num_kv_pages: true}", "`engine.num_kv_pages`: must be a whole number, got True"),
        ('engine: {model: m, num_kv_pages: "7"}', "`engine.num_kv_pages`: must be a whole number, got '7'"),
        ("engine: {model: m}\nfrontend: {port: 80.0}", "`frontend.port`: must be a whole number, got 80.0"),
        ("engine: {model: m}\nrunner: {stop_timeout_s: .nan}", "`runner.stop_timeout_s`: must be a finite number"),
        ("engine: {model: m}\nrunner: {stop_timeout_s: true}", "`runner.stop_timeout_s`: must be a number"),
        ("engine: {model: m}\nstrict_base: 1", "`strict_base`: must be true or false"),
        ("engine: {model: m, device_memory_share: 1.0}", "`engine.device_memory_share`: must be less than 1, got 1.0"),
        ('engine: {model: m, device_memory_share: "0.5"}', "`engine.device_memory_share`: must be a number"),
        (
            "engine: {model: m}\nfrontend: {unknown_fields: ignore}",
            "`frontend.unknown_fields`: must be 'refuse' or 'warn', got 'ignore'",
        ),
        (
            "engine: {model: m, load_format: pickle}",
            "`engine.load_format`: must be 'safetensors' or 'dummy', got 'pickle'",
        ),
        ("engine: {model: m, cuda_graphs: 1}", "`engine.cuda_graphs`: must be true or false"),
        ("engine: {model: m, page_size: " + 5000 * "y" + "}", r"`engine.page_size`: .* got 'y{99}\.\.\.$"),
        ("engine: {model: m, x: 3}", "`engine.x`: is not a known setting$"),
        ("engine: {model: m, max_batch: 3}", r"`engine.max_batch`: .* did you mean `engine.max_batch_size`\?$"),
        ("engine: {model: m}\nscheduler: {scale: {hok: [x]}}", r"`scheduler.scale.hok`: .* `scheduler.scale.hook`\?$"),
        (
            "engine: {model: m}\ntls: {certificate: a}",
            "`tls.certificate`: .*\n.*`tls.cert`: .*\n.*`tls.key`: .*\n.*`tls.ca`",
        ),
        ("engine: {model: m}\nscheduler: {placement: best}", "`scheduler.placement`: .* FILE.py:CLASS, got 'best'"),
        ("engine: {model: m}\nscheduler: {light_load: 1.0}", "`scheduler.light_load`: must be less than 1, got 1.0"),
        (
            "engine: {model: m}\nscheduler: {scale: {hook: resize}}",
            "`scheduler.scale.hook`: must be a list, got 'resize'",
        ),
        (
            "engine: {model: m}\nscheduler: {scale: {hook: []}}",
            "`scheduler.scale.hook`: must be a non-empty list",
        ),
        (
            "engine: {model: m}\nscheduler: {consolidation: {interval_s: 0}}",
            "`scheduler.consolidation.interval_s`: must be more than 0",
        ),
        ("engine: 3", "`engine`: must be a mapping, got 3"),
        ("engine: {model: 3}", "`engine.model`: must be a path, got 3"),
        ("engine: {model: m, model_name: 3}", "`engine.model_name`: must be a text, got 3"),
        ("engine: {model: m}\nrunner: {devices: []}", "`runner.devices`: must be a non-empty list, got \\[\\]"),
        ("engine: {model: m, cpu_threads: 100000}", "`engine.cpu_threads`: must be 1024 or less, got 100000"),
        ("engine: {model: m, num_kv_pages: 2147483648}", "`engine.num_kv_pages`: must be 2147483647 or less, got 2"),
        ("engine: {model: m, num_lora_pages: 9999999999}", "`engine.num_lora_pages`: must be 2147483647 or less"),
        ("engine: {model: m, page_size: 9999999999}", "`engine.page_size`: must be 2147483647 or less"),
        ("engine: {model: m, max_batch_size: 9999999999}", "`engine.max_batch_size`: must be 2147483647 or less"),
        (
            "engine: {model: m, host_cache_bytes: 99999999999999999999}",
            "`engine.host_cache_bytes`: must be 9223372036854",
        ),
        ("engine: {model: m}\nregistry: {usage_days: 99999999999999999999}", "`registry.usage_days`: must be 92233720"),
        (
            "engine: {model: m}\nscheduler: {queue_timeout_s: 1.0e+300}",
            "`scheduler.queue_timeout_s`: must be 1000000000 ",
        ),
        ("engine: {model: m}\nscheduler: {settle_s: 1.0e+300}", "`scheduler.settle_s`: must be 1000000000 or less"),
        ("engine: {model: m, page_size: 0}", "`engine.page_size`: must be 1 or more, got 0"),
        ("engine: {model: m}\nstore: {url: 'gopher://x'}", "`store.url`: .*no file system is known for gopher://"),
        ("engine: {model: m}\ntracing: {otlp_endpoint: nonsense}", "`tracing.otlp_endpoint`: .*http://host:port"),
        ("engine: {model: m}\ntracing: {otlp_endpoint: 'http://'}", "`tracing.otlp_endpoint`: .*http://host:port"),
        ("engine: {model: m}\nfrontend: {port: 70000}", "`frontend.port`: must be 65535 or less, got 70000"),
        (
            "engine: {model: m, dtype: int8}\nfrontend: {port: x}",
            r"`engine.dtype`: .*\n.*: `frontend.port`: .* got 'x'$",
        ),
    ],
)
def test_a_mistake_is_named_with_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(path)
    assert all(line.count(str(path)) == 1 for line in caught.value.message.splitlines())


@pytest.mark.parametrize(
    "settings",
    [
        {"registry": {"url": "postgres://punica:hunter2@db/registry"}},
        {"registry": "postgresql://punica:hunter2@db/registry"},
        {"store": {"url": "gopher://punica:hunter2@host/folder"}},
        {"tracing": {"otlp_endpoint": "grpc://punica:hunter2@host"}},
        {"store": {"options": "hunter2"}},
        {"store": {"sources": {"credentials": {"s3://bucket": "hunter2"}}}},
        {
            "store": {"options": {"secret": "hunter2"}},
            "engine": {"model": "base", "exchange": "fused"},
            "runner": {"hosts": 2, "rendezvous": "a:1"},
        },
    ],
)
def test_no_mistake_tells_a_secret(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({**settings, "engine": settings.get("engine", {"model": "base"})}, source="x", folder=tmp_path)
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize(
    "settings",
    [
        {"registry": {"url": "postgresql://punica:hunter2@db/registry"}},
        {"store": {"url": "sftp://punica:hunter2@host/folder"}},
        {"store": {"options": {"secret": "hunter2"}}},
        {"store": {"sources": {"credentials": {"s3://bucket": {"secret": "hunter2"}}}}},
        {"tracing": {"otlp_endpoint": "http://punica:hunter2@host"}},
    ],
)
def test_no_setting_shows_a_secret(tmp_path: Path, settings: dict[str, Any]) -> None:
    config = parse_config({"engine": {"model": "base"}, **settings}, source="x", folder=tmp_path)
    assert "hunter2" in config.model_dump_json()
    assert "hunter2" not in repr(config)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.yaml can't be read: No such file"):
        load_config(tmp_path / "none.yaml")


@pytest.mark.timeout(60)
def test_what_never_ends_is_no_config(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    for path in (tmp_path / "pipe.yaml", Path("/dev/zero")):
        with pytest.raises(ConfigError, match=rf"{path} can't be read: it is not a regular file$"):
            load_config(path)
    (tmp_path / "huge.yaml").write_bytes(b"#" * (17 << 20))
    with pytest.raises(ConfigError, match=r"huge.yaml is larger than 16 MiB, the limit$"):
        load_config(tmp_path / "huge.yaml")


def test_a_shape_is_a_folder_that_comes_with_the_package(tmp_path: Path) -> None:
    document = {"engine": {"model": "shape:llama-2-7b", "tokenizer": "demo:model", "load_format": "dummy"}}
    engine = parse_config(document, source="test", folder=tmp_path).engine
    assert engine.served_name == "llama-2-7b" and (engine.model / "config.json").is_file()
    assert (engine.tokenizer_folder / "tokenizer.json").is_file()


def test_files_of_tls_are_relative_to_the_file_and_silence_leaves_time_to_speak(tmp_path: Path) -> None:
    document = {"engine": {"model": "base"}, "tls": {"cert": "host.pem", "key": "/k.pem", "ca": "ca.pem"}}
    tls = parse_config(document, source="x", folder=tmp_path).tls
    assert tls is not None
    assert (tls.cert, tls.key, tls.ca) == (tmp_path / "host.pem", Path("/k.pem"), tmp_path / "ca.pem")
    impatient = {**document, "links": {"heartbeat_s": 2.0, "silence_s": 3.0}}
    with pytest.raises(ConfigError, match=r"`links`: .*at least twice heartbeat_s"):
        parse_config(impatient, source="x", folder=tmp_path)
