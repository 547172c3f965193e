"""Letters, batches, budgets and minutes as rows: exact counts, bounded lists, no secrets."""

from datetime import UTC, datetime, timedelta
from typing import Any

from prefect_resilience.durable.batches.edge.listing import BatchCounts
from prefect_resilience.durable.batches.edge.status import BatchSummary
from prefect_resilience.durable.letters.codec import KIND, LEFT_OUT
from prefect_resilience.durable.letters.model import Contents, DeadLetter
from prefect_resilience.guards.budgets.model import BudgetStatus
from prefect_resilience.operations import batch_rows, letter_rows
from prefect_resilience.operations.batch_rows import BatchRow
from prefect_resilience.operations.dashboard import desk as rows
from prefect_resilience.operations.letter_rows import CALLS_SHOWN, LONGEST_CALL, page_rows

NOW = datetime(2026, 11, 20, 12, 30, 15, tzinfo=UTC)
SECRET = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"


def letter(number, name="send", status="waiting", category="unavailable", **fields):
    return DeadLetter(
        id=f"id-{number:05}",
        kind="task",
        name=name,
        key=name,
        status=status,
        category=category,
        created_at=NOW - timedelta(seconds=number),
        **fields,
    )


def groups(listed, most=letter_rows.COUNTED):
    return list(page_rows(iter(listed), most)[0].values())


def test_ten_thousand_letters_are_counted_and_a_few_are_shown():
    listed = [letter(n, name=f"task-{n % 7}") for n in range(9_000)]
    listed += [letter(9_000 + n, status="replayed") for n in range(999)] + [letter(9_999, status="settled")]
    found, counts = page_rows(iter(listed))
    assert counts == {
        **{"waiting": 9_000, "in_doubt": 0, "replaying": 0, "more": False},
        **{"groups": 7, "shown": 7},
    }
    assert sum(group["waiting"] for group in found.values()) == 9_000
    third = next(group for group in found.values() if group["name"] == "task-3")
    assert third["newest"] == (NOW - timedelta(seconds=3)).timestamp()
    assert [call["id"] for call in third["calls"]] == [f"id-{3 + 7 * n:05}" for n in range(CALLS_SHOWN)]
    assert not third["more"]


def test_letters_with_one_kind_of_error_are_one_group():
    messages = [
        "order 7 of 'ada' is unknown at https://shop.example.com/7",
        "order 1812-9 of 'bob b' is unknown at https://shop.example.com/1812-9",
        "the shop is closed",
        "the shop is closed",
        "the shop is closed",
    ]
    listed = [letter(n, code="404", message=message) for n, message in enumerate(messages)]
    listed += [letter(9, code="404", message="the shop is closed", name="other")]
    listed += [letter(10, code="503", message="the shop is closed", status="in_doubt")]
    found = groups(listed)
    assert [(group["name"], group["waiting"], group["in_doubt"]) for group in found] == [
        ("send", 0, 1),
        ("send", 3, 0),
        ("send", 2, 0),
        ("other", 1, 0),
    ]
    assert found[2]["error"] == f"404 unavailable: {messages[0]}"
    assert [group["place"] for group in found] == [0, 1, 2, 3]


def test_a_call_has_its_arguments_and_no_secret():
    missing = {KIND: LEFT_OUT, "path": "api_key", "type": "str", "why": "secret"}
    arguments = {"order": 7, "api_key": missing, "note": f"key {SECRET}", "password": "hunter22"}
    one = letter(1, code="503", message=f"said no to {SECRET} " + "x" * 1_000)
    (group,) = groups([one.holding(Contents(parameters={**arguments, "long": "x" * 999}))])
    (call,) = group["calls"]
    assert call["call"].startswith(
        'order = 7, api_key = "***", note = "key ***", password = "***", long = "xxx'
    )
    assert len(call["call"]) <= LONGEST_CALL + 1
    assert SECRET not in str(group)
    assert group["error"].startswith("503 unavailable: said no to ")
    assert len(group["error"]) == LONGEST_CALL


def summary(batch_id, unknown=0, failed=0, done=0, **more):
    counts = {"intended": 0, "unknown": unknown, "failed": failed, "done": done, "compensated": 0}
    return BatchSummary(batch_id, **counts, first_at=1.0, last_at=2.0, **more)


def test_open_batches_in_their_order_with_the_names_of_their_runs():
    listed = [summary("a", unknown=2, done=3), summary("b", failed=1), summary("c", done=1, ended="Crashed")]
    counts = BatchCounts()
    shown = [BatchRow(one, {"a": "labels of the day"}.get(one.batch_id)) for one in counts.counting(listed)]
    found, numbers = batch_rows.page_rows(shown, counts)
    assert list(found) == ["a", "b", "c"]
    assert found["a"] == {"place": 0, **shown[0].as_json}
    assert (found["a"]["flow_run"], found["b"]["flow_run"]) == ("labels of the day", None)
    assert numbers == {
        **{"total": 3, "open": 3, "in_doubt": 1, "effects": 2, "more": False},
        **{"failed": 2, "shown": 3},
    }


def test_budgets_that_burn_come_first():
    status: dict[str, Any] = {"objective": 0.99, "window": 3600.0}
    listed = [
        BudgetStatus(name="well", **status, good=10),
        BudgetStatus(name="low", **status, good=9, bad=1, remaining=0.12345),
        BudgetStatus(name="burning", **status, burned=True, why=f"too fast with {SECRET}", burning_since=5.0),
    ]
    parts = rows.budgets(listed)
    assert list(parts["budgets"]) == ["burning", "low", "well"]
    assert SECRET not in parts["budgets"]["burning"]["why"]
    assert (parts["budgets"]["low"]["remaining"], parts["budgets"]["low"]["runs"]) == (0.123, 10)
    assert parts["summary"]["budgets"] == {"total": 3, "burning": 1}
    many = [BudgetStatus(name=f"{n}", **status) for n in range(300)]
    assert len(rows.budgets(many)["budgets"]) == rows.ROWS_SHOWN
