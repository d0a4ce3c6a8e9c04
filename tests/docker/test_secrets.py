"""docker/make-secrets: what compose.secure.yaml reads, as the processes read it."""

import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from punica_serve.config.tls_section import TlsConfig
from punica_serve.links.ssl_context import client_context, server_context

DOCKER = Path(__file__).parents[2] / "docker"

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


def make(folder: Path) -> dict[str, bytes]:
    if not (folder / "make-secrets").exists():
        shutil.copy(DOCKER / "make-secrets", folder)
    subprocess.run([folder / "make-secrets", "llm.example"], check=True, capture_output=True)
    return {path.name: path.read_bytes() for path in (folder / "secrets").iterdir()}


def test_all_that_compose_reads_is_made_once_and_kept_from_other_users(tmp_path: Path) -> None:
    made = make(tmp_path)
    wanted = set()
    for name in ("compose.yaml", "compose.secure.yaml"):
        secrets = yaml.safe_load((DOCKER / name).read_text())["secrets"]
        wanted |= {Path(secret["file"]).name for secret in secrets.values()}
    assert wanted <= made.keys()
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    # Containers' users are others than who made them; the authority's key goes into none.
    assert all((tmp_path / "secrets" / name).stat().st_mode & stat.S_IROTH for name in wanted)
    assert stat.S_IMODE((tmp_path / "secrets/ca.key").stat().st_mode) == 0o600
    assert make(tmp_path) == made


@pytest.mark.parametrize("role", ["scheduler", "runner", "frontend"])
def test_each_process_takes_its_certificate(role: str, tmp_path: Path) -> None:
    make(tmp_path)
    folder = tmp_path / "secrets"
    config = TlsConfig(cert=folder / f"{role}.pem", key=folder / f"{role}.key", ca=folder / "ca.pem")
    server_context(config)
    client_context(config)


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
@pytest.mark.parametrize("face", ["plain", "tls"])
def test_haproxy_takes_its_config(face: str, tmp_path: Path) -> None:
    make(tmp_path)
    config = (DOCKER / f"haproxy/{face}.cfg").read_text().replace("/run/secrets", str(tmp_path / "secrets"))
    (tmp_path / "face.cfg").write_text(config)
    command = ["haproxy", "-c", "-f", str(DOCKER / "haproxy/common.cfg"), "-f", str(tmp_path / "face.cfg")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
