"""The page docs/errors_sdks.md, out of what was measured."""

from collections.abc import Iterator

from tests.errors.sdks.model import Case, Outcome
from tests.errors.sdks.own_verdicts import Difference, differences

Row = tuple[Case, Outcome | None]

_HEAD = """# What the SDKs raise

The exceptions that SDKs raise, and how [`classify`](concepts/errors.md) reads them. The SDKs call a real
service on loopback that answers by a script, with their own retries switched off. For databases, brokers and
warehouses without such a service, the exceptions are built as the SDK builds them. The last column is the
decision of an engineer who knows the service. `python -m tests.errors.sdks --write` writes this page.
"""

_NOTE = """## Compared with the SDKs' own retries

Several SDKs retry calls themselves. For the same answers they decide like `classify`, with the exceptions in
this table. Switch off their retries (`max_retries=0`, `retry=None`, `retry_total=0`) when the call has a
`Retry` policy: otherwise attempts multiply.
"""


def page(rows: list[Row]) -> str:
    tried = [(case, outcome) for case, outcome in rows if outcome is not None]
    agreed = sum(outcome.agrees(case.expected) for case, outcome in tried)
    missing = list(dict.fromkeys(case.package for case, outcome in rows if outcome is None))
    packages = len({case.package for case, _ in tried})
    lines = [
        _HEAD,
        f"{len(tried)} situations of {packages} SDKs. `classify` decides like the expert in {agreed}.",
        *(["", f"Not installed when this was written: {', '.join(missing)}."] if missing else []),
        "",
        "| SDK | version | situation | exception | category | delay | retried | expert |",
        "|---|---|---|---|---|---|---|---|",
        *(_row(case, outcome) for case, outcome in tried),
        "",
        _NOTE,
        "| answer | SDK | the SDK | `classify` | why |",
        "|---|---|---|---|---|",
        *_differences(),
        "",
    ]
    return "\n".join(lines)


def _row(case: Case, outcome: Outcome) -> str:
    info = outcome.info
    wait = "" if info.retry_after is None else f"{info.retry_after:g} s"
    expert = "the same" if outcome.agrees(case.expected) else str(case.expected)
    expert += f" ({case.remark})" if case.remark else ""
    name = type(outcome.error).__name__
    again = "yes" if info.retryable else "no"
    cells = (
        case.package,
        case.version,
        case.situation,
        f"`{name}`",
        f"`{info.category}`",
        wait,
        again,
        expert,
    )
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _differences() -> Iterator[str]:
    grouped: dict[tuple[str, bool, bool, str], list[Difference]] = {}
    for each in differences():
        grouped.setdefault((each.answer, each.theirs, each.ours, each.why), []).append(each)
    for (answer, theirs, ours, why), members in grouped.items():
        packages = ", ".join(member.package for member in members)
        yield f"| {answer} | {packages} | {_again(theirs)} | {_again(ours)} | {why} |"


def _again(retried: bool) -> str:
    return "retries" if retried else "does not"
