"""From directives to what the agent needs."""

from __future__ import annotations

import re

from penstock.engine.config import Config, ConfigError
from penstock.shard.etcd import EtcdAddress

_is_name = re.compile(r"[0-9A-Za-z._-]{1,255}").fullmatch
EVERYWHERE = ("*", "0.0.0.0", "::", "::*")  # noqa: S104


def etcd_address(config: Config) -> EtcdAddress:
    """Where etcd is; ConfigError if that is no URL."""
    urls = tuple(url.strip().rstrip("/") for url in config.etcd.split(",") if url.strip())
    files = [str(config[name]) for name in ("etcd-ca-file", "etcd-cert-file", "etcd-key-file")]
    try:
        return EtcdAddress(urls, config.etcd_user, config.etcd_password, *files)
    except ValueError as error:
        raise ConfigError(f"etcd: {error}") from None


def place_of(config: Config) -> tuple[str, int]:
    """Where other nodes and clients reach this server."""
    port = config.replica_announce_port or (config.tls_port if config.tls_replication else config.port)
    hosts = [config.replica_announce_ip] if config.replica_announce_ip else [host.lstrip("-") for host in config.bind]
    if not hosts or hosts[0] in EVERYWHERE:
        raise ConfigError("etcd: say with replica-announce-ip under which address other nodes reach this server")
    if not port:
        raise ConfigError("etcd: a server of a shard needs a port that other nodes know")
    return hosts[0], port


def check_settings(config: Config) -> None:
    """ConfigError if a server of a shard cannot be run with these."""
    for name in ("shard", "node"):
        value = config[name]
        if not _is_name(value):
            raise ConfigError(f"etcd: {name} must be a name of letters, digits, dots, dashes and underscores")
    if config.replicaof:
        raise ConfigError("etcd: replicaof must be empty, etcd decides which server leads")
    if not config.appendonly:
        raise ConfigError("etcd: a server of a shard keeps a log. Set appendonly yes")
