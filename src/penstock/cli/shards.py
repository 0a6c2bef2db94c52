"""`penstock shard`: shows a shard's state in etcd, and changes its leader. Talks to etcd alone.

A hand-over is asked for in etcd, and the leader's agent sees to it. A node is removed from the in-sync set with a
transaction, as its leader would do it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn, TypeVar

import typer

from penstock.cli.terminal import ending_quietly
from penstock.shard.etcd import Delete, Etcd, EtcdAddress, EtcdError, Put
from penstock.shard.records import Snapshot, State, key_of, read_shard

Result = TypeVar("Result")
SECONDS = 5.0
"""That etcd has for an answer."""
HAND_OVER_SECONDS = 15.0

shard = typer.Typer(name="shard", help="See and change which server of a shard leads.", no_args_is_help=True)

SHARD = typer.Argument(..., help="The name of the shard.")
ETCD = typer.Option(..., "--etcd", help="URLs of etcd, with commas between them.", envvar="PENSTOCK_ETCD")
USER = typer.Option("", "--etcd-user", help="User of etcd; the password is in PENSTOCK_ETCD_PASSWORD.")
CA = typer.Option("", "--etcd-ca-file", help="Certificates of etcd's authority (https).")
CERT = typer.Option("", "--etcd-cert-file", help="Certificate that is shown to etcd.")
KEY = typer.Option("", "--etcd-key-file", help="Its private key.")


def register(app: typer.Typer) -> None:
    app.add_typer(shard)


@shard.command("status")
def status(
    name: str = SHARD, etcd: str = ETCD, user: str = USER, ca: str = CA, cert: str = CERT, key: str = KEY
) -> None:
    """Show the epoch, the leader, and the nodes of a shard."""
    etcd_shard = _EtcdShard(name, etcd, user, ca, cert, key)
    with ending_quietly():
        typer.echo(_shown(name, etcd_shard.read()))


@shard.command("failover")
def fail_over(
    name: str = SHARD,
    to: str = typer.Option("", "--to", help="The node that is to lead; without it, any that is in sync."),
    etcd: str = ETCD, user: str = USER, ca: str = CA, cert: str = CERT, key: str = KEY,
) -> None:  # fmt: skip
    """Have the leader hand over to another node. Nothing is lost, and no write is refused for long."""
    etcd_shard = _EtcdShard(name, etcd, user, ca, cert, key)
    before = etcd_shard.read()
    if not before.leader or before.state is None:
        etcd_shard.fail("no node leads, so none can hand over")
    others = [node for node in before.state.in_sync if node != before.leader and node in before.nodes]
    if to and to not in others:
        etcd_shard.fail(f"node {to} cannot lead now; these can: {', '.join(sorted(others)) or 'none'}")
    if not others:
        etcd_shard.fail("no other node is in sync and runs")
    etcd_shard.ask(lambda client: client.put(key_of(name, "failover"), json.dumps({"to": to})))
    deadline = time.monotonic() + HAND_OVER_SECONDS
    while time.monotonic() < deadline:
        now = etcd_shard.read()
        if now.epoch > before.epoch and now.leader:
            typer.echo(f"{now.leader} leads shard {name} in epoch {now.epoch}")
            return
        time.sleep(0.05)
    etcd_shard.ask(lambda client: client.change({}, Delete(key_of(name, "failover"))))
    etcd_shard.fail(f"{before.leader} has not handed over within {HAND_OVER_SECONDS:g} seconds; its log says why")


@shard.command("remove")
def remove(
    name: str = SHARD,
    node: str = typer.Argument(..., help="The node, which does not run any more."),
    force: bool = typer.Option(
        False, "--force", help="Also if it is the last one that has everything: what only it has is lost."
    ),
    etcd: str = ETCD, user: str = USER, ca: str = CA, cert: str = CERT, key: str = KEY,
) -> None:  # fmt: skip
    """Forget a node that will not come back: it cannot lead any more, and is not waited for."""
    etcd_shard = _EtcdShard(name, etcd, user, ca, cert, key)
    snapshot = etcd_shard.read()
    state = snapshot.state
    if state is None:
        etcd_shard.fail(f"etcd has no in-sync set of shard {name}: no node has led yet, or its data is lost")
    if node in snapshot.nodes:
        etcd_shard.fail(f"node {node} runs; stop it first")
    if node not in state.in_sync:  # the leader has removed it, or another call of this command
        typer.echo(f"no node {node} is in sync, so none was removed; in sync: {', '.join(sorted(state.in_sync))}")
        return
    left = {member: log for member, log in state.in_sync.items() if member != node}
    if not left and not force:
        etcd_shard.fail(
            f"node {node} is the last one that has everything; with --force any other node may lead without it"
        )
    etcd_shard.change(snapshot, replace(state, in_sync=left))
    typer.echo(f"in sync: {', '.join(sorted(left)) or 'no node'}")


@shard.command("restore")
def restore(
    name: str = SHARD,
    node: str = typer.Argument(..., help="The node whose data counts; it runs."),
    force: bool = typer.Option(
        False, "--force", help="Also if another node has more: what only that one has is put aside there."
    ),
    etcd: str = ETCD, user: str = USER, ca: str = CA, cert: str = CERT, key: str = KEY,
) -> None:  # fmt: skip
    """Say which node's data counts, when etcd has lost what it knew about the shard."""
    etcd_shard = _EtcdShard(name, etcd, user, ca, cert, key)
    snapshot = etcd_shard.read()
    if not snapshot.is_forgetful:
        etcd_shard.fail("etcd has lost nothing that the nodes know: there is nothing to restore")
    if snapshot.leader:
        etcd_shard.fail(f"node {snapshot.leader} leads without the data of the others; stop it first")
    chosen = snapshot.nodes.get(node)
    if chosen is None:
        etcd_shard.fail(f"node {node} does not run; these do: {', '.join(sorted(snapshot.nodes))}")
    further = [other for other, each in snapshot.nodes.items() if (each.epoch, each.end) > (chosen.epoch, chosen.end)]
    if further and not force:
        etcd_shard.fail(f"more data than {node} has: {', '.join(sorted(further))}; name that one, or say --force")
    epoch = max(each.epoch for each in snapshot.nodes.values())
    etcd_shard.change(snapshot, State(epoch, "", {node: chosen.log}))
    typer.echo(f"in sync: {node}. It leads in a moment, and the others follow")


class _EtcdShard:
    """etcd, for one shard; errors end the program."""

    def __init__(self, name: str, urls: str, user: str, ca: str, cert: str, key: str) -> None:
        self._name = name
        password = os.environ.get("PENSTOCK_ETCD_PASSWORD", "")
        endpoints = tuple(url.strip().rstrip("/") for url in urls.split(",") if url.strip())
        try:
            self._etcd = Etcd(EtcdAddress(endpoints, user, password, ca, cert, key), SECONDS)
        except ValueError as error:
            self.fail(f"--etcd: {error}")

    def ask(self, question: Callable[[Etcd], Result]) -> Result:
        try:
            return question(self._etcd)
        except EtcdError as error:
            self.fail(str(error))
        finally:
            self._etcd.close()

    def read(self) -> Snapshot:
        snapshot = self.ask(lambda client: read_shard(client, self._name))
        if snapshot.state is None and not snapshot.nodes:
            self.fail(f"etcd knows no shard {self._name}")
        return snapshot

    def change(self, snapshot: Snapshot, state: State) -> None:
        """Have etcd hold another state, unless something has changed since the snapshot was read."""
        read = {
            key_of(self._name, "state"): snapshot.state_revision,
            key_of(self._name, "leader"): snapshot.leader_revision,
        }
        if not self.ask(lambda client: client.change(read, Put(key_of(self._name, "state"), state.encoded()))):
            self.fail("another command changed the shard at the same time; try again")

    def fail(self, problem: str) -> NoReturn:
        typer.echo(f"penstock shard: {problem}", err=True)
        raise typer.Exit(1)


def _shown(name: str, snapshot: Snapshot) -> str:
    """A line for the shard, and one for each node that etcd knows of."""
    state = snapshot.state
    in_sync = state.in_sync if state is not None else {}
    lines = [
        f"shard {name}, epoch {snapshot.epoch}, " + (f"led by {snapshot.leader}" if snapshot.leader else "no leader")
    ]
    for node in sorted({*snapshot.nodes, *in_sync}):
        known = snapshot.nodes.get(node)
        place = f"{known.host}:{known.port}" if known is not None else "not running"
        is_member = node in in_sync and (known is None or known.log == in_sync[node])
        role = "leader" if node == snapshot.leader else "in sync" if is_member else "behind"
        lines.append(f"  {node:<12} {place:<24} {role}")
        if snapshot.is_forgetful and known is not None:
            lines[-1] += f"  data of epoch {known.epoch}, up to {known.end:,}"
    if snapshot.is_forgetful:
        lines.append(
            f"etcd has lost what it knew, or a node has a folder of another shard {name}: stop that node, or say whose "
            f"data counts with `penstock shard restore {name} NODE`"
        )
    return "\n".join(lines)
