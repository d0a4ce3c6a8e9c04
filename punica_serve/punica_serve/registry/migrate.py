"""Upgrades a database to the tables of this version."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from punica_serve.errors import ConfigError
from punica_serve.registry.database import Database

_FOLDER = Path(__file__).parent / "migrations"
#: Allows for future migrations that take long.
_MIGRATION_S = 300.0
#: Any number that no other program on the server uses.
_ADVISORY_LOCK = 0x70756E696361


async def migrate(database: Database) -> None:
    """Creates or upgrades the tables. Several processes may call it at once: all but one wait.

    Raises ConfigError for a database of a newer version of this program, and RegistryUnavailable.
    """
    script = ScriptDirectory(str(_FOLDER))
    async with database.reading() as connection:
        if await connection.run_sync(_revision) == script.get_current_head():
            return
    async with database.writing(timeout_s=_MIGRATION_S) as connection:
        if not database.is_sqlite:
            await connection.execute(text(f"SET LOCAL lock_timeout = '{_MIGRATION_S:g}s'"))
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})"))
        revision = await connection.run_sync(_revision)
        if revision is not None and revision not in {known.revision for known in script.walk_revisions()}:
            raise ConfigError(
                f"the registry's database {database.shown_url} belongs to a newer version of punica-serve (its tables"
                f" are {revision!r}); upgrade this one",
                param="registry.url",
            )
        await connection.run_sync(_upgrade)


def _revision(connection: Connection) -> str | None:
    """The revision of the existing tables; None if there are none yet."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return revision


def _upgrade(connection: Connection) -> None:
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    command.upgrade(config, "head")
