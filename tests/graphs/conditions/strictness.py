"""What is true of what: the table of strict comparison.

A row is (what stands at the path, operator, value of the condition, whether it holds). NOTHING stands for a
path that leads nowhere, ERROR for a condition that has no answer.
"""

import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from typing import Any
from uuid import UUID

NOTHING: Any = object()
ERROR: Any = object()

UTC = UTC
PLUS_TWO = timezone(timedelta(hours=2))
NAN = math.nan
INF = math.inf


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Word(str):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


KINDS = [
    (True, "equals", 1, False),
    (False, "equals", None, False),
    (True, "equals", "true", False),
    (True, "equals", True, True),
    (1, "equals", "1", False),
    (None, "equals", None, True),
    (None, "equals", {}, False),
    ([], "equals", {}, False),
    ([1], "equals", 1, False),
    (Colour.RED, "equals", "red", True),
    (Level.LOW, "equals", 1, True),
    (UUID(int=1), "equals", "00000000-0000-0000-0000-000000000001", True),
    (Word("a"), "equals", "b", False),
    (b"text", "equals", "text", True),
    (timedelta(seconds=90), "equals", 90, True),
    (time(12, 30), "equals", "12:30:00", True),
    ((1, 2), "equals", [1, 2], True),
]

NOTHING_THERE = [
    (NOTHING, "exists", None, False),
    (NOTHING, "not_exists", None, True),
    (None, "exists", None, True),
    (None, "not_exists", None, False),
    (NOTHING, "equals", None, ERROR),
    (NOTHING, "equals", 1, ERROR),
    (NOTHING, "not_equals", None, ERROR),
    (NOTHING, "gt", 0, ERROR),
    (NOTHING, "contains", "a", ERROR),
    (NOTHING, "in", [None], ERROR),
    (NOTHING, "matches", ".*", ERROR),
]

NUMBERS = [
    (1, "equals", 1.0, True),
    (0.1 + 0.2, "equals", 0.3, False),
    (2**63, "equals", float(2**63), True),
    (2**63, "gt", 2**63 - 1, True),
    (2**63 - 1, "equals", float(2**63), False),
    (2**53 + 1, "gt", float(2**53), True),
    (10**400, "gt", 1e308, True),
    (10**400, "equals", INF, False),
    (0.0, "equals", -0.0, True),
    (INF, "gt", 10**300, True),
    (NAN, "equals", NAN, False),
    (NAN, "gt", 0, False),
    (NAN, "gte", NAN, False),
    (NAN, "in", [NAN, None, 0], False),
    ([NAN], "equals", [NAN], False),
    ([NAN], "contains", NAN, False),
    (0.9, "gte", 0.9, True),
    (0.8999999999999999, "gte", 0.9, False),
    (True, "gt", 0, False),
    (True, "gt", False, False),
    ("0.95", "gte", 0.9, False),
    (0.95, "gte", "0.9", False),
    (None, "gt", 0, False),
    ([2], "gt", [1], False),
    ({"a": 2}, "gt", {"a": 1}, False),
    (Decimal("0.9"), "equals", 0.9, False),
    (Decimal("0.9"), "lt", 0.9, True),
    (Decimal("NaN"), "equals", NAN, False),
    (Decimal("sNaN"), "equals", 1, False),
    (1, "equals", Decimal("sNaN"), False),
    (Decimal("1E+999999"), "gt", 1e308, True),
    (Decimal("1"), "equals", True, False),
    (Fraction(1, 2), "equals", 0.5, True),
    (1 + 0j, "equals", 1, False),
]

TEXTS = [
    ("a", "equals", "a", True),
    ("a", "equals", "A", False),
    ("caf\u00e9", "equals", "caf\u00e9", True),
    ("caf\u00e9", "equals", "cafe\u0301", False),
    ("\ufb01", "equals", "fi", False),
    ("B", "lt", "a", True),
    ("a", "gt", "", True),
    ("z", "lt", "\u00e9", True),
    ("\uffff", "lt", "\U0001f600", True),
    ("report", "contains", "port", True),
    ("report", "contains", "Port", False),
    ("", "contains", "a", False),
    ("caf\u00e9", "contains", "e\u0301", False),
    (12, "contains", 1, False),
    (None, "contains", None, False),
    ("report", "matches", "^re", True),
    ("report", "matches", "(?i)REPORT", True),
    ("x\ny", "matches", "x.y", False),
    ("\u0661", "matches", r"^\d$", True),
    ("\u00c9", "matches", r"^\p{Lu}$", True),
    (5, "matches", "5", False),
    (["a"], "matches", "a", False),
]

MEMBERS = [
    ([1, 2], "contains", 1.0, True),
    ([1, 2], "contains", True, False),
    ([True], "contains", 1, False),
    ([None], "contains", None, True),
    ([[1]], "contains", [1], True),
    ([[True]], "contains", [1], False),
    (["report"], "contains", "port", False),
    ((1, 2), "contains", 2, True),
    ({"a": 1}, "contains", "a", True),
    ({"a": {"b": 1}}, "contains", "b", False),
    ({"1": "x"}, "contains", 1, False),
    (1, "in", [1, 2], True),
    (1, "in", [True], False),
    (None, "in", [None], True),
    (None, "in", [0, "", False, []], False),
    ("a", "in", ["abc"], False),
    ([1], "in", [[1]], True),
    ({"a": 1}, "in", [{"a": True}], False),
]

DEEP = [
    ([[]], "equals", [{}], False),
    ([1, 2], "equals", [2, 1], False),
    ([1, [2, [3]]], "equals", [1, [2, [True]]], False),
    ({"a": 1}, "equals", {"a": 1.0}, True),
    ({"a": 0}, "equals", {"a": False}, False),
    ({"a": None}, "equals", {}, False),
    ({"a": 1, "b": 2}, "equals", {"b": 2, "a": 1}, True),
    ({"a": {"b": [True]}}, "equals", {"a": {"b": [1]}}, False),
    ({"caf\u00e9": 1}, "equals", {"cafe\u0301": 1}, False),
    ({1: "x"}, "equals", {"1": "x"}, True),
    ({"a": "2024-01-01T00:00:00Z"}, "equals", {"a": "2024-01-01T01:00:00+01:00"}, True),
]

TIMES = [
    (datetime(2024, 1, 1, tzinfo=UTC), "equals", datetime(2024, 1, 1, tzinfo=UTC), True),
    (datetime(2024, 1, 1, 2, tzinfo=PLUS_TWO), "equals", datetime(2024, 1, 1, tzinfo=UTC), True),
    (datetime(2024, 1, 1, tzinfo=UTC), "equals", "2024-01-01T02:00:00+02:00", True),
    ("2024-01-01T00:00:00Z", "equals", "2024-01-01T00:00:00+00:00", True),
    ("2024-01-01T00:00:00Z", "equals", "2023-12-31T22:30:00-01:30", True),
    ("2024-01-01T00:00:00.10Z", "equals", "2024-01-01T00:00:00.1Z", True),
    ("2024-01-01T00:00:00.123456789Z", "gt", "2024-01-01T00:00:00.123456788Z", True),
    ("2024-01-01T12:00:00+02:00", "lt", "2024-01-01T11:00:00Z", True),
    (datetime(2024, 1, 1), "equals", "2024-01-01T00:00:00", True),
    (datetime(2024, 1, 1), "lt", "2024-01-01T00:00:01", True),
    (datetime(2024, 1, 1), "equals", datetime(2024, 1, 1, tzinfo=UTC), False),
    (datetime(2024, 1, 1), "lt", datetime(2025, 1, 1, tzinfo=UTC), False),
    (datetime(2024, 1, 1), "gte", datetime(2024, 1, 1, tzinfo=UTC), False),
    ("2024-01-01T00:00:00", "equals", "2024-01-01T00:00:00Z", False),
    ("0001-01-01T00:00:00+14:00", "lt", "0001-01-01T00:00:00Z", True),
    ("9999-12-31T23:59:59-12:00", "gt", "9999-12-31T23:59:59Z", True),
    ("2016-12-31T23:59:60Z", "equals", "2016-12-31T23:59:60Z", True),
    ("2024-01-01T00:00:00+0200", "equals", "2024-01-01T00:00:00+02:00", False),
    (datetime(2024, 1, 1, tzinfo=UTC), "gt", 0, False),
    (date(2024, 1, 1), "equals", "2024-01-01", True),
    (date(2024, 1, 1), "lt", "2024-01-02", True),
    (date(2024, 1, 1), "equals", datetime(2024, 1, 1), False),
    (date(2024, 1, 1), "lt", datetime(2024, 1, 2, tzinfo=UTC), False),
    (date(2024, 1, 1), "lt", "2024-13-01", False),
    ([datetime(2024, 1, 1, tzinfo=UTC)], "contains", "2024-01-01T00:00:00Z", True),
    ("2024-01-01T02:00:00+02:00", "in", [datetime(2024, 1, 1, tzinfo=UTC)], True),
]

TABLE = {
    "kinds": KINDS,
    "nothing there": NOTHING_THERE,
    "numbers": NUMBERS,
    "texts": TEXTS,
    "members": MEMBERS,
    "deep": DEEP,
    "times": TIMES,
}
