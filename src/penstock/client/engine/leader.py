"""Finds the leader among several servers, without I/O: the questions, and the meaning of the answers.

A shard is a leader and its replicas. Its URL names some of them, and any of them may lead. A search asks all of them
for ROLE and INFO replication. The leader is the server that says `master`; of several, the one with the highest epoch,
then the one that has more replicas, then the one that led before. (Servers without etcd have no epoch.) Servers that
the leader or a replica names are remembered, and asked too. With Sentinel the URL names Sentinels instead; they are
asked for the leader's address, and that server is asked whether it leads.

A search may find a server that does not lead any more when the client uses it. That is no harm: it answers READONLY,
has not run the command, and the client searches again.

Rejected: asking the servers one after the other. A server that is stopped or cut off would hold up every search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import redis
from redis.exceptions import AuthorizationError, BusyLoadingError, NoPermissionError

from penstock.client.errors import WrongShard
from penstock.client.events import Node

MOST_LEARNED = 16
"""Servers that are remembered beside those of the URL."""


class Question(NamedTuple):
    """The question to one server."""

    node: Node
    is_sentinel: bool = False
    service: str = ""
    """What Sentinel is asked for."""

    @property
    def commands(self) -> list[tuple[str, ...]]:
        if self.is_sentinel:
            return [("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)]
        return [("ROLE",), ("INFO", "replication")]


Answer = Sequence[Any] | Exception
"""The replies to the commands of a question, errors among them; or why there are none."""


@dataclass(slots=True)
class _Report:
    """The answer of one server about itself."""

    role: str = ""
    offset: int = 0
    replicas: tuple[Node, ...] = ()
    leader: Node | None = None
    """Of a replica: the server that it follows."""
    shard: str = ""
    epoch: int = 0
    error: Exception | None = None

    @property
    def refusal(self) -> Exception | None:
        """The error, if the server would answer the same next time."""
        kinds = redis.AuthenticationError | AuthorizationError | redis.ResponseError
        return self.error if isinstance(self.error, kinds) and not isinstance(self.error, BusyLoadingError) else None


def says_leader(question: Question, answer: Answer) -> bool:
    """Whether a server says that it leads, or a Sentinel says which server does."""
    if question.is_sentinel:
        return not isinstance(answer, Exception) and isinstance(answer[0], list)
    return _report(answer).role == "master"


def shown(node: Node) -> str:
    """
    >>> shown(("::1", 6379)), shown(("a", 6380))
    ('[::1]:6379', 'a:6380')
    """
    host, port = node
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Shard:
    """The client's knowledge of a shard. Shared by its threads: every attribute is replaced whole."""

    def __init__(self, name: str, nodes: Sequence[Node], is_sentinels: bool = False) -> None:
        self.name = name
        self.nodes = tuple(nodes)
        """As the URL has them: servers, or Sentinels."""
        self.is_sentinels = is_sentinels
        self.leader: Node | None = None
        """The one that was found last."""
        self.learned: tuple[Node, ...] = ()

    def __str__(self) -> str:
        return f"{self.name or 'the shard'} ({', '.join(map(shown, self.nodes))})"

    def search(self) -> Generator[list[Question], Mapping[Question, Answer], Node]:
        """Yields what is to be asked, all at once; is sent the answers; returns the leader. Raises redis-py's
        ConnectionError if there is none now, and another error if there will be none.
        """
        reports: dict[Node, _Report] = {}
        wanted = list(dict.fromkeys((*self.nodes, *self.learned)))
        if self.is_sentinels:
            wanted = self._named_by_sentinels((yield [Question(node, True, self.name) for node in self.nodes]))
        while wanted:
            answers = yield [Question(node) for node in wanted]
            reports |= {question.node: _report(answer) for question, answer in answers.items()}
            self._check_names(reports)
            leader = self._best(reports)
            if leader is not None:
                self.leader = leader
                others = [*reports[leader].replicas, *filter(None, (leader, reports[leader].leader))]
                self.learned = tuple([node for node in others if node not in self.nodes][:MOST_LEARNED])
                return leader
            named = [report.leader for report in reports.values() if report.leader is not None]
            wanted = [node for node in dict.fromkeys(named) if node not in reports][:MOST_LEARNED]
        raise self._not_found(reports)

    def _named_by_sentinels(self, answers: Mapping[Question, Answer]) -> list[Node]:
        """The servers that Sentinels name as the leader, the one that most of them name first."""
        named: Counter[Node] = Counter()
        failures = {}
        for question, answer in answers.items():
            if isinstance(answer, Exception) or isinstance(answer[0], Exception):
                error = answer if isinstance(answer, Exception) else answer[0]
                if "unknown command" in str(error):
                    where = shown(question.node)
                    error = redis.ResponseError(f"{where} is no Sentinel; a URL of servers begins with penstock://")
                failures[question.node] = _Report(error=error)
            elif answer[0] is None:
                failures[question.node] = _Report(error=redis.ConnectionError(f"knows no {self.name!r}"))
            else:
                host, port = answer[0]
                named[host.decode(), int(port)] += 1
        if not named:
            raise self._not_found(failures)
        return [node for node, _ in named.most_common()]

    def _check_names(self, reports: Mapping[Node, _Report]) -> None:
        for node in self.nodes:
            found = reports[node].shard if node in reports else ""
            if self.name and found and found != self.name:
                raise WrongShard(f"{shown(node)} is a server of the shard {found!r}, and the URL names {self.name!r}")

    def _best(self, reports: Mapping[Node, _Report]) -> Node | None:
        def rank(node: Node) -> tuple[int, int, bool, int]:
            report = reports[node]
            return report.epoch, len(report.replicas), node == self.leader, report.offset

        is_mine = {node: not (self.name and report.shard not in ("", self.name)) for node, report in reports.items()}
        leaders = [node for node, report in reports.items() if report.role == "master" and is_mine[node]]
        return max(leaders, key=rank, default=None)

    def _not_found(self, reports: Mapping[Node, _Report]) -> Exception:
        refusals = [report.refusal for report in reports.values()]
        if refusals and refusals[0] is not None and all(refusals):
            return refusals[0]
        what = "Sentinel" if self.is_sentinels else "server"
        told = "; ".join(f"{shown(node)}{_told(report)}" for node, report in reports.items())
        return redis.ConnectionError(f"no {what} of {self} says which server leads: {told}")


def _told(report: _Report) -> str:
    if report.error is not None:
        return f": {report.error}"
    if report.leader is not None:
        return f" follows {shown(report.leader)}"
    return f" says {report.role or 'nothing'}"


def _report(answer: Answer) -> _Report:
    if isinstance(answer, Exception):
        return _Report(error=answer)
    role, info = answer
    if isinstance(role, Exception):
        if isinstance(role, NoPermissionError):
            role = NoPermissionError(f"{role} (to find the leader, the user must be able to run ROLE and INFO)")
        return _Report(error=role)
    report = _Report(role=role[0].decode())
    if report.role == "master":
        report.offset = int(role[1])
        report.replicas = tuple((host.decode(), int(port)) for host, port, _ in role[2])
    elif report.role == "slave":
        report.leader, report.offset = (role[1].decode(), int(role[2])), int(role[4])
    if isinstance(info, bytes):
        fields = dict(line.partition(":")[::2] for line in info.decode().splitlines())
        report.shard, report.epoch = fields.get("shard", ""), int(fields.get("epoch") or 0)
    return report
