"""Sessions of browsers, which can't send a header with a websocket: a cookie that names a key, and can't be forged.

The cookie is `key_id.expires.signature`. The signature's secret comes from the cluster's token, so every frontend takes
the cookies of every other, and nothing is kept. A session ends with its key, whatever the cookie says.
"""

import base64
import hashlib
import hmac

#: Of the cookie.
NAME = "punica_session"
LIFETIME_S = 12 * 3600


class Sessions:
    """Makes cookies and reads them. Does no input or output."""

    def __init__(self, cluster_token: str) -> None:
        self._secret = hmac.digest(cluster_token.encode(), b"punica-serve sessions of browsers", hashlib.sha256)

    def cookie(self, key_id: str, now_s: float) -> str:
        """For whoever has shown the key."""
        named = f"{key_id}.{int(now_s) + LIFETIME_S}"
        return f"{named}.{self._signature(named)}"

    def key_id_of(self, cookie: str, now_s: float) -> str | None:
        """None for a cookie that is not of this cluster, or has expired."""
        named, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature.encode(errors="replace"), self._signature(named).encode()):
            return None
        key_id, _, expires_s = named.rpartition(".")
        return key_id if now_s < int(expires_s) else None

    def _signature(self, named: str) -> str:
        digest = hmac.digest(self._secret, named.encode(errors="replace"), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
