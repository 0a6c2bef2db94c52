"""A client of etcd, by way of its JSON gateway: keys and values, transactions, leases, watches, log-in, TLS.

Several endpoints are members of one etcd: if one does not answer, the next one is asked. A request may then have run
twice. That is harmless here, because a change is a transaction on what was read, and a lease that was granted in vain
runs out.

It blocks, and is for one thread at a time.

Rejected: a client that speaks gRPC. It brings threads into a process that starts others, and a compiled library. An
HTTP client of the package index: what is needed of HTTP is one POST, which the standard library has.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from penstock.protocol.errors import PenstockError

WATCH_SECONDS = 10.0
"""Seconds of silence after which a watch ends: its connection may be dead."""
LOGIN = "/v3/auth/authenticate"
LOGIN_SECONDS = 5.0
"""Seconds that an endpoint has for a log-in: etcd computes a slow hash of the password, and a log-in that is given up
and repeated makes an etcd that is busy busier. All members know what comes of it, so that is kept for the next one.
"""
LOSES_DATA = ((3, 5, 0), (3, 5, 5))
"""Versions of etcd from and to which a member that is killed may lose what it has confirmed."""


class EtcdError(PenstockError):
    """etcd refused a request."""


class EtcdUnavailable(EtcdError):
    """No endpoint gave an answer in time."""


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """The addresses of etcd and the login."""

    endpoints: tuple[str, ...]  # URLs
    user: str = ""
    password: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""

    def __post_init__(self) -> None:
        for endpoint in self.endpoints:
            url = urlsplit(endpoint)
            if url.scheme not in ("http", "https") or not url.hostname or url.path.strip("/"):
                raise ValueError(f"'{endpoint}' is not a URL of etcd, such as http://10.0.0.1:2379")


class KeyValue(NamedTuple):
    """A key as etcd has it."""

    key: str
    value: str
    revision: int  # of the last change of this key
    lease: int  # 0 for none


class Put(NamedTuple):
    """Part of a transaction."""

    key: str
    value: str
    lease: int = 0

    def encoded(self) -> dict[str, Any]:
        put = {"key": _encode(self.key), "value": _encode(self.value)}
        return {"request_put": {**put, "lease": str(self.lease)} if self.lease else put}


class Delete(NamedTuple):
    """Part of a transaction."""

    key: str

    def encoded(self) -> dict[str, Any]:
        return {"request_delete_range": {"key": _encode(self.key)}}


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _decode(text: str) -> str:
    return base64.b64decode(text).decode("utf-8", "replace")


def _after(prefix: str) -> str:
    """The first key that does not begin with `prefix`, whose last character is a slash."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


class Etcd:
    """See the top of this file."""

    def __init__(self, address: EtcdAddress, seconds: float) -> None:
        self._address = address
        self._seconds = seconds  # that an endpoint has for an answer
        self._at = 0  # the endpoint in use
        self._token = ""
        self._connection: http.client.HTTPConnection | None = None
        self._tls: ssl.SSLContext | None = None

    # -- keys -------------------------------------------------------------------------------------------------

    def read(self, prefix: str) -> tuple[int, list[KeyValue]]:
        """The revision of etcd, and all keys that begin with `prefix`."""
        answer = self._ask("/v3/kv/range", {"key": _encode(prefix), "range_end": _encode(_after(prefix))})
        found = [
            KeyValue(
                _decode(each["key"]),
                _decode(each.get("value", "")),
                int(each["mod_revision"]),
                int(each.get("lease", 0)),
            )
            for each in answer.get("kvs", [])
        ]
        return int(answer["header"]["revision"]), found

    def put(self, key: str, value: str, lease: int = 0) -> None:
        self._ask("/v3/kv/put", Put(key, value, lease).encoded()["request_put"])

    def change(self, read: dict[str, int], *changes: Put | Delete) -> bool:
        """Make changes if the keys in `read` still have these revisions (0: there is none); whether they were made."""
        compare = [
            {"key": _encode(key), "target": "MOD", "mod_revision": str(revision), "result": "EQUAL"}
            for key, revision in read.items()
        ]
        body = {"compare": compare, "success": [each.encoded() for each in changes]}
        return bool(self._ask("/v3/kv/txn", body).get("succeeded", False))

    def watch(self, prefix: str, revision: int) -> Iterator[None]:
        """Yield once when the watch is there, and then for each change of a key from `revision` on.

        It ends when nothing comes for a while, and when etcd ends it.
        """
        create = {"key": _encode(prefix), "range_end": _encode(_after(prefix)), "start_revision": str(revision)}
        response = self._open("/v3/watch", {"create_request": create}, max(self._seconds, WATCH_SECONDS))
        try:
            while line := response.readline():
                result = json.loads(line).get("result", {})
                if "canceled" in result:
                    return
                if "created" in result or "events" in result:
                    yield
        except (OSError, http.client.HTTPException, ValueError):
            return
        finally:
            self.close()

    # -- leases -----------------------------------------------------------------------------------------------

    def grant(self, seconds: int) -> tuple[int, int]:
        """A new lease: its id, and its seconds, which may be more than asked for."""
        answer = self._ask("/v3/lease/grant", {"TTL": str(seconds)})
        return int(answer["ID"]), int(answer["TTL"])

    def keep_alive(self, lease: int) -> int:
        """The seconds that a lease has again; 0 if it is gone."""
        answer = self._ask("/v3/lease/keepalive", {"ID": str(lease)})
        return int(answer.get("result", {}).get("TTL", 0))

    def revoke(self, lease: int) -> None:
        """End a lease now: its keys are gone. One that is gone already is no error."""
        try:
            self._ask("/v3/lease/revoke", {"ID": str(lease)})
        except EtcdUnavailable:
            raise
        except EtcdError as error:
            if "lease not found" not in str(error):
                raise

    # -- requests ---------------------------------------------------------------------------------------------

    def version(self) -> tuple[int, ...]:
        """The version of the member that answers."""
        text = str(self._ask("/version", None)["etcdserver"])
        return tuple(int(part) for part in text.split("-")[0].split(".") if part.isdigit())

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        """The answer of the first endpoint that gives one."""
        problem: Exception | None = None
        for _ in range(len(self._address.endpoints) + 1):  # once more for the first: its connection may be an old one
            try:
                return self._ask_one(path, body)
            except EtcdUnavailable as error:
                problem = error
        raise EtcdUnavailable(str(problem))

    def _ask_one(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        for attempt in (1, 2):
            response = self._open(path, body, self._seconds)
            try:
                text = response.read()
            except (OSError, http.client.HTTPException) as error:
                raise self._lost(error) from None
            answer = _parsed(text)
            if response.status == 200:
                return answer
            problem = str(answer.get("error") or answer.get("message") or _plain(text) or f"HTTP {response.status}")
            if attempt == 1 and self._token and "auth token" in problem:
                self._token = ""  # it has run out
                continue
            if response.status == 503 or response.status == 504:  # it has no leader, or is too slow
                raise self._lost(problem)
            raise EtcdError(f"etcd at {self._endpoint} refuses {path}: {problem}")
        raise AssertionError("unreachable")

    def _open(self, path: str, body: dict[str, Any] | None, seconds: float) -> http.client.HTTPResponse:
        """Send a request to the endpoint in use; its response, of which nothing but the header was read."""
        if self._address.user and not self._token and path != LOGIN:
            login = {"name": self._address.user, "password": self._address.password}
            self._token = str(self._ask_one(LOGIN, login)["token"])
        headers = {"Authorization": self._token} if self._token else {}
        try:
            connection = self._connect()
            if body is None:
                connection.request("GET", path, headers=headers)
            else:
                headers["Content-Type"] = "application/json"
                connection.request("POST", path, json.dumps(body), headers)
            connection.sock.settimeout(LOGIN_SECONDS if path == LOGIN else seconds)
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from None

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            url = urlsplit(self._endpoint)
            assert url.hostname is not None
            if url.scheme == "https":
                self._connection = http.client.HTTPSConnection(
                    url.hostname, url.port or 2379, timeout=self._seconds, context=self._context()
                )
            else:
                self._connection = http.client.HTTPConnection(url.hostname, url.port or 2379, timeout=self._seconds)
        if self._connection.sock is not None:
            self._connection.sock.settimeout(self._seconds)
        return self._connection

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            address = self._address
            for path in filter(None, (address.ca_file, address.cert_file, address.key_file)):
                try:
                    Path(path).open("rb").close()
                except OSError as error:  # ssl would not say which file
                    raise EtcdError(f"{path}, for TLS to etcd, cannot be read: {error.strerror}") from None
            tls = ssl.create_default_context(cafile=address.ca_file or None)
            if address.cert_file:
                tls.load_cert_chain(address.cert_file, address.key_file or None)
            self._tls = tls
        return self._tls

    @property
    def _endpoint(self) -> str:
        return self._address.endpoints[self._at]

    def _lost(self, problem: object) -> EtcdUnavailable:
        """This endpoint does not answer; the next one is asked next."""
        self.close()
        text = f"etcd at {self._endpoint} does not answer: {problem or type(problem).__name__}"
        self._at = (self._at + 1) % len(self._address.endpoints)
        return EtcdUnavailable(text)


def _plain(text: bytes) -> str:
    """The first line of an answer that is no JSON."""
    line = text.strip().split(b"\n")[0].decode("utf-8", "replace")
    return line if line[:1] != "{" and line.isprintable() else ""


def _parsed(text: bytes) -> dict[str, Any]:
    """The first JSON object of an answer; an empty one if there is none."""
    try:
        answer = json.loads(text.split(b"\n")[0] or b"{}")
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
