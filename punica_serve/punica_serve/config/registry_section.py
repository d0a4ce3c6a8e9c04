"""The config section `registry`: which database to use."""

from pathlib import Path
from typing import Annotated, Self
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from punica_serve.config.fields import ConfigModel, File, Name, PositiveInt, resolve_folder
from punica_serve.errors import ConfigError
from punica_serve.errors.reasons import reason_of

_SQLITE = "sqlite:///"


def _checked(url: str, info: ValidationInfo) -> str:
    """Checks the URL; a SQLite file is relative to the config file, like folders."""
    if url.startswith(_SQLITE):
        if not (file := url.removeprefix(_SQLITE)):
            raise ValueError("must name a file")
        return sqlite_url(resolve_folder(Path(file), info))
    if urlsplit(url).scheme != "postgresql" or not urlsplit(url).path.strip("/"):
        raise ValueError("must be sqlite:///FILE or postgresql://USER@HOST/DATABASE")
    return url


def sqlite_url(file: Path) -> str:
    return f"{_SQLITE}{file.resolve()}"


class RegistryConfig(ConfigModel):
    """The database of adapters, tenants, keys and usage. Frontends on several hosts need PostgreSQL."""

    #: sqlite:///FILE, or postgresql://USER@HOST/DATABASE, with the password from `password_file`, PGPASSWORD or
    #: ~/.pgpass. By default registry.db in `data_folder`.
    url: Annotated[Name, AfterValidator(_checked)] | None = Field(default=None, repr=False)
    #: File with the PostgreSQL password, for service managers and containers that provide secrets as files.
    password_file: File | None = None
    #: How long a call may wait for the database before it is refused with 503. Longer for a disk that is slow to take a
    #: commit, but no longer than a new registration keeps its files from being deleted.
    timeout_s: Annotated[float, Field(strict=True, ge=0.1, le=60)] = 5.0
    #: How many days to keep usage and the audit log; null keeps them forever. The default leaves a month to check a
    #: year's bills.
    usage_days: PositiveInt | None = 400
    audit_days: PositiveInt | None = 400

    @model_validator(mode="after")
    def _has_a_user_for_the_password(self) -> Self:
        if self.password_file is not None:
            parts = urlsplit(self.url or "")
            if not parts.username or parts.password is not None:
                raise ValueError("password_file needs a URL of the form postgresql://USER@HOST/DATABASE")
        return self

    def url_with_password(self) -> str | None:
        """``url`` with the password currently in the file. Raises ConfigError."""
        if self.url is None or self.password_file is None:
            return self.url
        try:
            password = self.password_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            message = f"`registry.password_file`: {self.password_file} can't be read: {reason_of(error)}"
            raise ConfigError(message, param="registry.password_file") from error
        user, _, host = urlsplit(self.url).netloc.rpartition("@")
        return urlsplit(self.url)._replace(netloc=f"{user}:{quote(password, safe='')}@{host}").geturl()
