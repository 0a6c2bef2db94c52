"""The tables of the console: its pages, its views, and its actions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.responses import Response

from penstock.console import actions
from penstock.console.actions import Action
from penstock.console.downloads import download, name, raw, tail
from penstock.console.live import View
from penstock.console.request_context import RequestContext
from penstock.console.views.clients import clients
from penstock.console.views.keys import key, keys
from penstock.console.views.letters import letters
from penstock.console.views.messages import message, messages
from penstock.console.views.nodes import nodes
from penstock.console.views.overview import overview
from penstock.console.views.pipelines import pipelines
from penstock.console.views.previews import move, retention
from penstock.console.views.stream import graph, kind, stream
from penstock.console.views.streams import streams

PAGES = ("/", "/streams", "/stream", "/pipelines", "/clients", "/keys", "/key", "/nodes", "/login")

VIEWS: dict[str, View] = {
    "overview": overview,
    "streams": streams,
    "stream": stream,
    "stream-kind": kind,
    "graph": graph,
    "messages": messages,
    "message": message,
    "letters": letters,
    "move": move,
    "retention": retention,
    "pipelines": pipelines,
    "clients": clients,
    "keys": keys,
    "key": key,
    "nodes": nodes,
}

STREAMED: dict[str, Callable[[RequestContext], Awaitable[Response]]] = {
    "tail": tail,
    "download": download,
    "raw": raw,
    "name": name,
}

ACTIONS: dict[str, Action] = {
    "write": Action("write a message", actions.write),
    "move-group": Action("move a group", actions.move_group),
    "delete-group": Action("delete a group", actions.delete_group),
    "retain": Action("change retention", actions.retain),
    "put-back": Action("put letters back", actions.put_back),
    "end-client": Action("end a connection", actions.end_client),
    "empty-slow-log": Action("empty the slow log", actions.empty_slow_log),
    "delete-key": Action("delete a key", actions.delete_key),
    "expire-key": Action("set an expiry", actions.expire_key),
}
