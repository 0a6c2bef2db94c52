"""The one error tree: what the server encodes on the wire and the client decodes from it.

Every error that can cross the wire is a ReplyError. Its first word on the wire is its code, unique in this
file, so `decode` can find the class again from the text alone:

    PenstockError
    |-- ProtocolError              the peer broke the framing; the connection ends
    `-- ReplyError       ERR       a command was refused, the connection goes on
        |-- WrongType    WRONGTYPE the key holds another type
        |-- NoAuth       NOAUTH    log in first
        |-- WrongPass    WRONGPASS bad user name or password
        |-- NoPerm       NOPERM    an ACL rule says no
        |-- NoProto      NOPROTO   HELLO asked for a version that does not exist
        |-- ExecAbort    EXECABORT EXEC after an error while queueing
        |-- NoScript     NOSCRIPT  EVALSHA of a script that is not loaded
        |-- NotBusy      NOTBUSY   nothing to kill
        |-- Busy         BUSY      a script has run too long
        |-- Unkillable   UNKILLABLE the script has written already
        |-- BusyKey      BUSYKEY   RESTORE over a key that exists
        |-- OutOfMemory  OOM       maxmemory is reached and the command may grow memory
        |-- Loading      LOADING   the data set is still being read
        |-- Misconf      MISCONF   the log or the snapshot cannot be written
        |-- ReadOnly     READONLY  this server is a replica, and takes no writes
        |-- MasterDown   MASTERDOWN a replica that lost its leader, and answers nothing then
        |-- NoMasterLink NOMASTERLINK a replica that lost its leader, and is asked for the feed
        |-- NoReplicas   NOREPLICAS too few replicas follow
        |-- Unblocked    UNBLOCKED CLIENT UNBLOCK ... ERROR
        |-- Fenced       FENCED    a producer that a newer one has replaced
        |-- SchemaMisfit SCHEMA    an entry does not fit the schema of its stream
        |-- OnceStale    ONCESTALE ONCE with a number below the floor: its reply is gone
        |-- OnceUnknown  ONCEUNKNOWN ONCE from a client that was forgotten
        |-- OnceFull     ONCEFULL  no room to keep another reply
        |-- Locked       LOCKED    a script touched a locked key it did not declare
        |-- CrossSlot    CROSSSLOT keys of one command in several slots
        |-- TryAgain     TRYAGAIN  keys of one command are on both sides of a migration
        |-- ClusterDown  CLUSTERDOWN
        |-- Moved        MOVED     the slot lives elsewhere, for good
        `-- Ask          ASK       the slot lives elsewhere, for this one command

Rejected: one class with a code argument. Callers then compare strings, and a typo is a silent miss.
"""

from __future__ import annotations

from typing import ClassVar, Self


class PenstockError(Exception):
    """Anything this package raises on purpose."""


class ProtocolError(PenstockError):
    """The peer broke the framing of the protocol; nothing after this point can be read."""


class ReplyError(PenstockError):
    """A command was refused. The text after the code word is `str(error)`."""

    code: ClassVar[str] = "ERR"

    @property
    def counted_as(self) -> str:
        """The name under which INFO errorstats counts it; empty if it was counted before."""
        return self.code

    def wire(self) -> bytes:
        """The error as it travels: code word, text, never a line break (it would end the reply early)."""
        text = f"{self.code} {self}" if self.args and str(self) else self.code
        return one_line(text)

    def as_reply(self) -> Self:
        """This error as a value, without its traceback.

        The frames of a traceback hold the arguments, and this error again. Such a cycle stays in memory until the
        garbage collector runs, which is rare on a server.
        """
        self.__traceback__ = self.__context__ = self.__cause__ = None
        return self


def one_line(text: str) -> bytes:
    """An error's text without line breaks: those at its end are removed, others become spaces, as in Redis."""
    return text.rstrip("\r\n").replace("\r", " ").replace("\n", " ").encode("utf-8", "surrogateescape")


class WrongType(ReplyError):
    code = "WRONGTYPE"

    def __init__(self, text: str = "Operation against a key holding the wrong kind of value") -> None:
        super().__init__(text)


class NoAuth(ReplyError):
    code = "NOAUTH"

    def __init__(self, text: str = "Authentication required.") -> None:
        super().__init__(text)


class WrongPass(ReplyError):
    code = "WRONGPASS"

    def __init__(self, text: str = "invalid username-password pair or user is disabled.") -> None:
        super().__init__(text)


class NoPerm(ReplyError):
    code = "NOPERM"


class NoProto(ReplyError):
    code = "NOPROTO"

    def __init__(self, text: str = "unsupported protocol version") -> None:
        super().__init__(text)


class ExecAbort(ReplyError):
    code = "EXECABORT"

    def __init__(self, text: str = "Transaction discarded because of previous errors.") -> None:
        super().__init__(text)


class NoScript(ReplyError):
    code = "NOSCRIPT"

    def __init__(self, text: str = "No matching script. Please use EVAL.") -> None:
        super().__init__(text)


class NotBusy(ReplyError):
    code = "NOTBUSY"

    def __init__(self, text: str = "No scripts in execution right now.") -> None:
        super().__init__(text)


class Busy(ReplyError):
    code = "BUSY"


class Unkillable(ReplyError):
    code = "UNKILLABLE"


class BusyKey(ReplyError):
    code = "BUSYKEY"

    def __init__(self, text: str = "Target key name already exists.") -> None:
        super().__init__(text)


class OutOfMemory(ReplyError):
    code = "OOM"

    def __init__(self, text: str = "command not allowed when used memory > 'maxmemory'.") -> None:
        super().__init__(text)


class Loading(ReplyError):
    code = "LOADING"

    def __init__(self, text: str = "Penstock is loading the dataset in memory") -> None:
        super().__init__(text)


class Misconf(ReplyError):
    code = "MISCONF"


class ReadOnly(ReplyError):
    code = "READONLY"


class MasterDown(ReplyError):
    code = "MASTERDOWN"

    def __init__(self, text: str = "Link with MASTER is down and replica-serve-stale-data is set to 'no'.") -> None:
        super().__init__(text)


class NoMasterLink(ReplyError):
    code = "NOMASTERLINK"

    def __init__(self, text: str = "Can't SYNC while not connected with my master") -> None:
        super().__init__(text)


class NoReplicas(ReplyError):
    code = "NOREPLICAS"

    def __init__(self, text: str = "Not enough good replicas to write.") -> None:
        super().__init__(text)


class Unblocked(ReplyError):
    code = "UNBLOCKED"

    def __init__(self, text: str = "client unblocked via CLIENT UNBLOCK") -> None:
        super().__init__(text)


class OnceStale(ReplyError):
    code = "ONCESTALE"


class OnceUnknown(ReplyError):
    code = "ONCEUNKNOWN"


class OnceFull(ReplyError):
    code = "ONCEFULL"


class Fenced(ReplyError):
    code = "FENCED"


class SchemaMisfit(ReplyError):
    code = "SCHEMA"


class Locked(ReplyError):
    code = "LOCKED"


class CrossSlot(ReplyError):
    code = "CROSSSLOT"

    def __init__(self, text: str = "Keys in request don't hash to the same slot") -> None:
        super().__init__(text)


class TryAgain(ReplyError):
    code = "TRYAGAIN"


class ClusterDown(ReplyError):
    code = "CLUSTERDOWN"


class Moved(ReplyError):
    code = "MOVED"


class Ask(ReplyError):
    code = "ASK"


# -- errors that many commands share, so that their texts are written once ------------------------------------


def not_an_integer() -> ReplyError:
    return ReplyError("value is not an integer or out of range")


def not_a_float() -> ReplyError:
    return ReplyError("value is not a valid float")


def syntax_error() -> ReplyError:
    return ReplyError("syntax error")


def no_such_key() -> ReplyError:
    return ReplyError("no such key")


def shown(raw: bytes) -> str:
    """An argument inside an error's text: its bytes up to a NUL, which ends a text in C.

    >>> shown(b"GET\\0s")
    'GET'
    """
    return raw.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def wrong_arity(name: str) -> ReplyError:
    """`name` as Redis prints it: lower case, `container|sub` for a subcommand."""
    return ReplyError(f"wrong number of arguments for '{name}' command")


def bad_subcommand(argv: list[bytes]) -> ReplyError:
    """A subcommand with arguments that its arity allows and its syntax does not."""
    container, sub = (shown(word) for word in argv[:2])
    return ReplyError(f"unknown subcommand or wrong number of arguments for '{sub}'. Try {container.upper()} HELP.")


def _subclasses(root: type[ReplyError]) -> dict[str, type[ReplyError]]:
    return {root.code: root} | {cls.code: cls for cls in root.__subclasses__()}


BY_CODE: dict[str, type[ReplyError]] = _subclasses(ReplyError)


def decode(line: bytes) -> ReplyError:
    """The error for a wire line; an unknown code word stays in the text of a plain ReplyError.

    >>> decode(b"WRONGTYPE no").code
    'WRONGTYPE'
    """
    text = line.decode("utf-8", "surrogateescape")
    code, _, rest = text.partition(" ")
    cls = BY_CODE.get(code)
    if cls is None:
        return ReplyError(text)
    return cls(rest) if rest else cls()
