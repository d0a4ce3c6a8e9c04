"""Certificates for HTTPS, signed by an authority that each run makes anew."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import trustme

from punica_serve.config.tls_section import HttpsConfig


@dataclass(frozen=True)
class HttpsFiles:
    """A frontend's files, and the authority's certificate for its clients."""

    config: HttpsConfig
    ca: Path

    @property
    def settings(self) -> dict[str, str]:
        """As a config file names them."""
        return {"cert": str(self.config.cert), "key": str(self.config.key)}


def write_https_files(folder: Path, *hosts: str, not_after: datetime | None = None) -> HttpsFiles:
    folder.mkdir(exist_ok=True)
    authority = trustme.CA()
    issued = authority.issue_cert(*hosts or ("127.0.0.1",), not_after=not_after)
    cert, key, ca = (folder / name for name in ("cert.pem", "key.pem", "ca.pem"))
    issued.cert_chain_pems[0].write_to_path(str(cert))
    issued.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(ca))
    return HttpsFiles(HttpsConfig(cert=cert, key=key), ca)
