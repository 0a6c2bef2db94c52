"""Dates and timestamps in strings of JSON, as Spark's `from_json` reads them: to days and to microseconds since 1970.

A date is `yyyy[-m[m][-d[d]]]`, and whatever follows it after a T or a blank is ignored. A timestamp has the time of day
after that, `h[h][:m[m][:s[s][.fraction]]]`, and after the seconds a zone: Z, an offset, or the name of a region. Years
have four to six digits.

Three things are refused that Spark takes: a number in a string as a date, a time without a date (it would mean the day
on which it is read), and the names of zones of three letters. A timestamp without a zone is in UTC: Spark does not tell
a Python data source the time zone of the session.

Rejected: datetime.fromisoformat, which knows no year beyond 9999, no single digits and no regions.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

_DATE = re.compile(r"([+-]?\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_TIMESTAMP = re.compile(
    r"([+-]?\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?(.+)?)?)?)?)?)?",
    re.ASCII | re.DOTALL,
)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2})(?::?(\d{2}))?)?", re.ASCII)
_FIRST_DAY = date(1970, 1, 1).toordinal()
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
_DAY, _SECOND = 86_400 * 1_000_000, 1_000_000
_BLANKS = "".join(map(chr, range(33)))


def days(text: str) -> int:
    """The days since 1970 of a date; ValueError if it is none.

    >>> days("1970-1-02T03:04")
    1
    """
    found = _DATE.fullmatch(text.strip(_BLANKS))
    if found is None:
        raise ValueError("not a date")
    return _days(*found.groups())


def microseconds(text: str, with_zone: bool) -> int:
    """The microseconds since 1970 of a timestamp; ValueError if it is none, or has a zone where there must not be one.

    >>> microseconds("1970-01-01T01:00:01+01:00", with_zone=True)
    1000000
    """
    found = _TIMESTAMP.fullmatch(text.strip(_BLANKS))
    if found is None:
        raise ValueError("not a timestamp")
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    clock = [int(part or 0) for part in (hour, minute, second)]
    if clock[0] > 23 or clock[1] > 59 or clock[2] > 59:
        raise ValueError("not a time of day")
    in_day = ((clock[0] * 60 + clock[1]) * 60 + clock[2]) * _SECOND + int((fraction or "")[:6].ljust(6, "0"))
    local = _days(year, month, day) * _DAY + in_day
    if zone is None:
        return local
    if not with_zone:
        raise ValueError("a timestamp without time zone has one")
    return local - _offset(zone.strip(_BLANKS), local) * _SECOND


def _days(year: str, month: str | None, day: str | None) -> int:
    """Years are mapped to a cycle of the calendar that `date` knows."""
    cycle, in_cycle = divmod(int(year), _CYCLE_YEARS)
    known = date(in_cycle + _CYCLE_YEARS, int(month or 1), int(day or 1))
    return known.toordinal() - _FIRST_DAY + (cycle - 1) * _CYCLE_DAYS


def _offset(zone: str, local: int) -> int:
    """The seconds that a zone is ahead of UTC at a local time."""
    if zone == "Z":
        return 0
    found = _OFFSET.fullmatch(zone)
    if found is not None:
        hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:])
        if hours * 3600 + minutes * 60 + seconds > 18 * 3600 or minutes > 59 or seconds > 59:
            raise ValueError("not a time zone")
        ahead = hours * 3600 + minutes * 60 + seconds
        return -ahead if found[1] == "-" else ahead
    try:
        when = datetime.fromtimestamp(local // _SECOND, UTC).replace(tzinfo=ZoneInfo(zone))
        shift = when.utcoffset()
    except (LookupError, OSError, OverflowError):
        raise ValueError("not a time zone") from None
    assert shift is not None
    return round(shift.total_seconds())
