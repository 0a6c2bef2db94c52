"""Which commands may be LAZY. Every command is named below, so a new one must be added."""

from __future__ import annotations

import pytest

from penstock.engine.concurrency.lazy_rules import never, refusal, sometimes
from penstock.engine.declarations import REGISTRY, Flag, Reach

MAY = """
APPEND BITFIELD BITOP COPY DECR DECRBY DEL GETDEL GETSET HDEL HINCRBY HINCRBYFLOAT HMSET HSET HSETNX INCR INCRBY
INCRBYFLOAT
LINSERT LMOVE LMPOP LPOP LPUSH LPUSHX LREM LSET LTRIM MSET MSETNX PERSIST RENAME RENAMENX RPOP RPOPLPUSH RPUSH RPUSHX
SADD
SDIFFSTORE SET SETBIT SETNX SETRANGE SINTERSTORE SMOVE SORT SREM SUNIONSTORE TACK TEVICT TGROUP|DEL TUNSTAGE UNLINK XDEL
XSETID XTRIM
ZADD ZDIFFSTORE ZINCRBY ZINTERSTORE ZMPOP ZPOPMAX ZPOPMIN ZRANGESTORE ZREM ZREMRANGEBYLEX ZREMRANGEBYRANK
ZREMRANGEBYSCORE
ZUNIONSTORE
""".lower()

WRITES_THAT_MAY_NOT = {
    "may wait": "blmove blmpop blpop brpop brpoplpush bzmpop bzpopmax bzpopmin tread",
    "depends on the clock": "expire expireat getex pexpire pexpireat psetex restore setex tcommit textend tnack "
    "tretain tstage twrite xadd",
    "has a random outcome, which the log must know at once": "spop",
    "is logged by its effect, which is not known before it runs": "tgiveup tgroup|set",
    "decides which of the next writes are refused": "tschema|del tschema|set",
    "is an operator's command": "tapply",
    "names no key": "flushall flushdb oncebegin onceend swapdb",
    "changes another database": "move",
    "cannot be nested": "lazy",
    "is answered with the reply of the command inside": "once",
    "touches keys that are not known before it runs": "function|delete function|flush function|load function|restore",
}

REASONS_OF_THE_REST = {
    "only reads", "changes no key", "may wait", "is an operator's command",
    "belongs to the connection, not to the data", "touches keys that are not known before it runs",
}  # fmt: skip

BY_ARGUMENT = """
SET a b EX 1                    | SET a b px 1                 | SET a b EXAT 1        | SET a b PXAT 1
COPY a b DB 1                   | SORT a BY w_* STORE b        | SORT a GET w_* STORE b | SORT a STORE b GET w_*
SORT a                          | SORT a LIMIT 0 1             | TEVICT a -1           | XTRIM a MAXLEN ~ 10
"""

ALLOWED = """
SET a b                         | SET a b NX GET               | SET a b KEEPTTL       | COPY a b REPLACE
SORT a STORE b                  | SORT a BY nosort GET # STORE b | TEVICT a 7          | XTRIM a MAXLEN = 10
ZUNIONSTORE a 2 b c             | LMPOP 2 a b LEFT             | SET ex px             | TGROUP DEL k g
"""


def lines(text: str) -> list[list[bytes]]:
    return [form.split() for line in text.encode().splitlines() for form in line.split(b"|") if form.strip()]


def test_every_write_takes_a_stand() -> None:
    expected: dict[str, str | None] = dict.fromkeys(MAY.split())
    expected |= {name: why for why, names in WRITES_THAT_MAY_NOT.items() for name in names.split()}
    assert {each.wire_name: never(each) for each in REGISTRY.walk() if each.writes} == expected


def test_nothing_else_may_be_lazy_and_each_says_why() -> None:
    for each in REGISTRY.walk():
        if not each.writes and not each.subcommands:
            assert never(each) in REASONS_OF_THE_REST, each.name


@pytest.mark.parametrize("argv", lines(BY_ARGUMENT), ids=lambda argv: b" ".join(argv).decode())
def test_arguments_may_rule_it_out(argv: list[bytes]) -> None:
    command = REGISTRY.resolve(argv)
    assert never(command) is None
    why = refusal(command, argv)
    assert why in (*sometimes(command), "only reads, with these arguments")


@pytest.mark.parametrize("argv", lines(ALLOWED), ids=lambda argv: b" ".join(argv).decode())
def test_other_arguments_do_not(argv: list[bytes]) -> None:
    assert refusal(REGISTRY.resolve(argv), argv) is None


def test_who_sees_data_without_naming_keys_says_how_far() -> None:
    """Otherwise queued commands would not run before it.

    FLUSHDB and FLUSHALL drop the queue themselves; ONCEBEGIN, ONCEEND and FUNCTION do not see queued changes.
    """
    without = (
        "FLUSHALL",
        "FLUSHDB",
        "ONCEBEGIN",
        "ONCEEND",
        *(f"FUNCTION {what}" for what in ("DELETE", "FLUSH", "LOAD", "RESTORE")),
    )
    for each in REGISTRY.walk():
        if each.flags & (Flag.READONLY | Flag.WRITE) and not each.keys and each.name not in without:
            assert each.beyond is not None and each.beyond.reach is not Reach.KEYS, each.name


def test_who_gives_values_other_names_says_so() -> None:
    assert {each.name for each in REGISTRY.walk() if Flag.RENAMES in each.flags} == {"RENAME", "RENAMENX", "COPY"}
