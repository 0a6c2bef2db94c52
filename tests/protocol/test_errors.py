"""The error tree: what is encoded on one side is the same error on the other."""

from __future__ import annotations

import pytest

from penstock.protocol import errors
from penstock.protocol.errors import BY_CODE, PenstockError, ReplyError, bad_subcommand, decode, wrong_arity


def every_class() -> list[type[ReplyError]]:
    found = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, ReplyError)]
    assert len(found) > 20
    return found


@pytest.mark.parametrize("cls", every_class(), ids=lambda cls: cls.__name__)
def test_an_error_survives_the_wire(cls: type[ReplyError]) -> None:
    line = cls("some text").wire()
    assert line == cls.code.encode() + b" some text"
    back = decode(line)
    assert type(back) is cls and str(back) == "some text"


def test_code_words_are_unique_and_drawn_in_the_docstring() -> None:
    classes = every_class()
    assert len(BY_CODE) == len(classes) == len({cls.code for cls in classes})
    assert errors.__doc__ is not None
    for cls in classes:
        assert cls.code in errors.__doc__ and cls.__name__ in errors.__doc__


def test_an_unknown_code_word_stays_in_the_text() -> None:
    back = decode(b"STRANGE things happen")
    assert type(back) is ReplyError and str(back) == "STRANGE things happen"


def test_no_error_can_break_its_line() -> None:
    wire = ReplyError("a\r\nb\nc").wire()
    assert b"\r" not in wire and b"\n" not in wire


def test_line_breaks_at_its_end_are_no_part_of_an_error() -> None:
    assert ReplyError("a\nb\r\n").wire() == b"ERR a b"


def test_bytes_that_are_not_text_survive() -> None:
    line = b"ERR unknown command '\xff\xfe'"
    assert decode(line).wire() == line


def test_a_code_word_alone_brings_its_own_text() -> None:
    assert str(decode(b"WRONGTYPE")) == "Operation against a key holding the wrong kind of value"
    assert decode(b"ERR").wire() == b"ERR"


def test_shared_texts_name_their_command() -> None:
    assert str(wrong_arity("config|get")) == "wrong number of arguments for 'config|get' command"
    assert "for 'Pause'. Try CLIENT HELP." in str(bad_subcommand([b"client", b"Pause"]))


def test_protocol_errors_are_no_replies() -> None:
    assert issubclass(errors.ProtocolError, PenstockError) and not issubclass(errors.ProtocolError, ReplyError)
