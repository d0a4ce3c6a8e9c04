from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from punica_serve.config.cluster import ClusterConfig, parse_config
from punica_serve.errors import ConfigError


def parse(folder: Path, **store: Any) -> ClusterConfig:
    document = {"engine": {"model": "model"}, "data_folder": "data", "store": store}
    return parse_config(document, source="test", folder=folder)


def test_the_store_is_a_folder_of_the_data_by_default(tmp_path: Path) -> None:
    assert parse(tmp_path).store_url == str(tmp_path / "data" / "store")


def test_a_folder_is_relative_to_the_file_and_a_url_is_not(tmp_path: Path) -> None:
    assert parse(tmp_path, url="shared").store_url == str(tmp_path / "shared")
    assert parse(tmp_path, url="s3://bucket/adapters").store_url == "s3://bucket/adapters"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://", "names no host; write http://HOST/FOLDER, got 'http://'"),
        ("https://", "names no host; write https://HOST/FOLDER, got 'https://'"),
        ("https:///adapters", "names no host; write https://HOST/FOLDER"),
        ("http://:8080/adapters", "names no host; write http://HOST/FOLDER"),
        ("s3://", "names no bucket; write s3://BUCKET/FOLDER, got 's3://'"),
        ("s3:///adapters", "names no bucket; write s3://BUCKET/FOLDER"),
        ("hf://", "names no repository; write hf://USER/REPOSITORY"),
        ("hf://user/", "names no repository; write hf://USER/REPOSITORY"),
        (
            "memory://adapters",
            "memory:// is each process's own, and no worker would find adapters there; use a folder",
        ),
    ],
)
def test_a_url_without_its_host_or_bucket_is_refused(tmp_path: Path, url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"`store.url`: {message}"):
        parse(tmp_path, url=url)


def test_other_schemes_may_name_no_place(tmp_path: Path) -> None:
    for url in ("file:///adapters", "hf://user/adapters"):
        assert parse(tmp_path, url=url).store_url == url


def test_sources(tmp_path: Path) -> None:
    sources = parse(tmp_path, sources={"allowed": ["s3://b/team/"], "private_networks": ["10.1.0.0/16"]}).store.sources
    assert sources.allowed == ("s3://b/team/",)
    assert sources.private_networks == (ip_network("10.1.0.0/16"),)


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ({"allowed": ["bucket/team"]}, "must begin with a scheme"),
        ({"credentials": {"bucket": {}}}, "must begin with a scheme"),
        (
            {"private_networks": ["10.1.0.0/16", "10.1.0.0/99"]},
            "`store.sources.private_networks.1`: must be a network, such as 10.1.0.0/16, without bits behind its"
            " length, got '10.1.0.0/99'",
        ),
        ({"private_networks": ["10.1.0.9/16"]}, "must be a network, .* got '10.1.0.9/16'"),
        ({"private_networks": [5]}, "`store.sources.private_networks.0`: must be a network, .* got 5"),
        ({"credentials": {"s3://b/": {"key": {"env": 5}}}}, "{env: 5} must have the name of an environment variable"),
        ({"credentials": {"s3://b/": {"deep": {"key": {"file": None}}}}}, "{file: None} must have a path"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, sources: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(tmp_path, sources=sources)


def test_secrets_files_are_relative_to_the_config(tmp_path: Path) -> None:
    config = parse(tmp_path, options={"deep": {"secret": {"file": "s3-secret"}}, "key": {"env": "K"}})
    assert config.store.options == {"deep": {"secret": {"file": str(tmp_path / "s3-secret")}}, "key": {"env": "K"}}


def test_a_folder_of_nobody_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`store\.url`: Could not determine home directory"):
        parse(tmp_path, url="~nosuchuser/store")


def test_another_process_reads_the_same(tmp_path: Path) -> None:
    config = parse(tmp_path, sources={"private_networks": ["10.1.0.0/16", "fd00::/8"]}, options={"key": {"env": "K"}})
    assert ClusterConfig.model_validate_json(config.model_dump_json()).store == config.store
