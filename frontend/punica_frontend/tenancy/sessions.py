"""Browser sessions: a signed cookie that names a key, since browsers can't send headers with a websocket.

The cookie is `key_id.expires.signature`. The signature's secret is derived from the cluster's token, so every frontend
accepts the cookies of all others, and nothing is stored. A session ends with its key, whatever the cookie says.
"""

import base64
import hashlib
import hmac

#: The cookie's name.
NAME = "punica_session"
LIFETIME_S = 12 * 3600


class Sessions:
    """Creates and reads cookies. Does no input or output."""

    def __init__(self, cluster_token: str) -> None:
        self._secret = hmac.digest(cluster_token.encode(), b"punica-serve sessions of browsers", hashlib.sha256)

    def cookie(self, key_id: str, now_s: float) -> str:
        """Returns a cookie for a client that has shown the key."""
        named = f"{key_id}.{int(now_s) + LIFETIME_S}"
        return f"{named}.{self._signature(named)}"

    def key_id_of(self, cookie: str, now_s: float) -> str | None:
        """Returns None for a cookie of another cluster, or an expired one."""
        named, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature.encode(errors="replace"), self._signature(named).encode()):
            return None
        key_id, _, expires_s = named.rpartition(".")
        return key_id if now_s < int(expires_s) else None

    def _signature(self, named: str) -> str:
        digest = hmac.digest(self._secret, named.encode(errors="replace"), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
