"""The connection to Ray: at RAY_ADDRESS, a Ray started on this machine, or a new one here."""

import logging
import os
import re
import socket

import ray

from punica_serve.cli.up.on_ray.plan import Resources
from punica_serve.errors import ConfigError

ADDRESS_ENV = "RAY_ADDRESS"
#: Ray itself would try for more than a minute, without a way to interrupt it.
DIAL_TIMEOUT_S = 5.0


def connect(namespace: str, needs: Resources) -> None:
    """Connects this process. A Ray that is started here gets the resources ``needs``, and ends with this process.

    Blocks for seconds. Raises ConfigError if nothing answers at RAY_ADDRESS, or it refuses.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)  # it logs every connection
    address = os.environ.get(ADDRESS_ENV, "")
    try:
        if host_and_port := re.fullmatch(r"(.+):(\d+)", address):  # not "auto", "local" and the like
            host, port = host_and_port.groups()
            socket.create_connection((host, int(port)), DIAL_TIMEOUT_S).close()
        ray.init(address="auto", namespace=namespace, logging_level=logging.ERROR)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        if address:
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
            message = (
                f"can't connect to Ray at {ADDRESS_ENV}={address}: {reason}; "
                f"set RAY_AUTH_MODE=token if it checks tokens, or unset {ADDRESS_ENV} to start a Ray on this machine"
            )
            raise ConfigError(message, param=ADDRESS_ENV) from error
        _start_here(namespace, needs)


def _start_here(namespace: str, needs: Resources) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage reports without consent
    ray.init(
        address="local",
        namespace=namespace,
        num_cpus=max(os.cpu_count() or 1, round(needs.get("CPU", 0))),
        resources={name: amount for name, amount in needs.items() if name not in ("CPU", "GPU")},
        include_dashboard=False,
        logging_level=logging.ERROR,
    )
