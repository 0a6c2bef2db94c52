"""The options of the clients, for type checkers: a misspelt one is an error before the program runs.

Our own options, redis-py's, and those of a cluster are each listed once, and put together for each client. The types of
redis-py's are those of its constructors. tests/client/test_typing.py compares the names with what the constructors
take, so that an option of a new redis-py cannot be missing.

Rejected: constructors with fifty parameters. They would repeat the defaults of redis-py, which change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from ssl import TLSVersion, VerifyFlags, VerifyMode
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import redis
import redis.asyncio
from redis.credentials import CredentialProvider
from redis.driver_info import DriverInfo
from redis.event import EventDispatcher
from redis.maint_notifications import MaintNotificationsConfig, OSSMaintNotificationsHandler

from penstock.client.delivery import Delivery, ReplayFilter
from penstock.client.events import Reconnected, Replayed

if TYPE_CHECKING:
    from redis.asyncio.retry import Retry as AioRetry
    from redis.cache import CacheConfig, CacheInterface
    from redis.retry import Retry


class DeliveryOptions(TypedDict, total=False):
    """Options of all our clients, described in docs/client.md."""

    delivery: Delivery | str
    replay_filter: ReplayFilter | None
    command_timeout: float | None
    max_buffered_commands: int
    max_buffered_bytes: int
    when_full: Literal["block", "raise"]
    backoff_base: float
    backoff_cap: float
    on_reconnect: Callable[[Reconnected], object] | None
    on_replay: Callable[[Replayed], object] | None


class ConnectionOptions(TypedDict, total=False):
    """Connection options of redis-py's blocking and asyncio clients."""

    db: int | str
    username: str | None
    password: str | None
    socket_timeout: float | None
    socket_connect_timeout: float | None
    socket_read_size: int
    socket_keepalive: bool | None
    socket_keepalive_options: Mapping[int, int | bytes] | object | None
    unix_socket_path: str | None
    encoding: str
    encoding_errors: str
    decode_responses: bool
    retry_on_timeout: bool
    retry_on_error: list[type[Exception]] | None
    ssl: bool
    ssl_keyfile: str | None
    ssl_certfile: str | None
    ssl_cert_reqs: str | VerifyMode
    ssl_include_verify_flags: list[VerifyFlags] | None
    ssl_exclude_verify_flags: list[VerifyFlags] | None
    ssl_ca_certs: str | None
    ssl_ca_path: str | None
    ssl_ca_data: str | None
    ssl_check_hostname: bool
    ssl_password: str | None
    ssl_min_version: TLSVersion | None
    ssl_ciphers: str | None
    max_connections: int | None
    single_connection_client: bool
    health_check_interval: float
    client_name: str | None
    lib_name: str | object | None
    lib_version: str | object | None
    driver_info: DriverInfo | object | None
    redis_connect_func: Callable[[Any], object] | None
    credential_provider: CredentialProvider | None
    protocol: int | None
    legacy_responses: bool
    event_dispatcher: EventDispatcher | None
    maint_notifications_config: MaintNotificationsConfig | None


class SyncConnectionOptions(ConnectionOptions, total=False):
    """Options of redis.Redis."""

    retry: Retry
    ssl_validate_ocsp: bool
    ssl_validate_ocsp_stapled: bool
    ssl_ocsp_context: Any
    ssl_ocsp_expected_cert: str | None
    cache: CacheInterface | None
    cache_config: CacheConfig | None
    oss_cluster_maint_notifications_handler: OSSMaintNotificationsHandler | None


class AioConnectionOptions(ConnectionOptions, total=False):
    """Options of redis.asyncio.Redis."""

    retry: AioRetry
    auto_close_connection_pool: bool | None


class UrlOptions(DeliveryOptions, SyncConnectionOptions, total=False):
    """Options of penstock.Client.from_url."""


class AioUrlOptions(DeliveryOptions, AioConnectionOptions, total=False):
    """Options of penstock.aio.Client.from_url."""


class ClientOptions(UrlOptions, total=False):
    """Options of penstock.Client."""

    host: str
    port: int
    connection_pool: redis.ConnectionPool | None


class AioClientOptions(AioUrlOptions, total=False):
    """Options of penstock.aio.Client."""

    host: str
    port: int
    connection_pool: redis.asyncio.ConnectionPool | None


class RoutingOptions(DeliveryOptions, total=False):
    """Options of both cluster clients, described in docs/cluster.md."""

    startup_nodes: Iterable[Any]
    patience: float
    read_from_replicas: bool
    split: bool
    address_remap: Callable[[tuple[str, int]], tuple[str, int]] | None
    refresh_interval: float


class ClusterOptions(RoutingOptions, SyncConnectionOptions, total=False):
    """Options of penstock.Cluster."""


class AioClusterOptions(RoutingOptions, AioConnectionOptions, total=False):
    """Options of penstock.aio.Cluster."""
