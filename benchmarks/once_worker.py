"""The tool of `benchmarks.once`, guarded by one library, in a process that may be killed.

Each library is used as its README says: its own store, a key of the turn, the payee and the amount, its way
to ask the receiver if it has one. DBOS runs the turn as a workflow, model answers and payments as its steps.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

LEASE, PATIENCE = 2.0, 0.5
"""Seconds of a lease where a library has one, and until the caller of a slow payment gives up."""
Ask = Callable[[list[Any]], list[Any]]


class Spec:
    """What a worker is to do."""

    def __init__(self, text: str) -> None:
        self.given: dict[str, Any] = json.loads(text)
        self.folder = Path(self.given["folder"])
        self.turn: str = self.given["turn"]
        self.fault: str = self.given["fault"]
        self.blind: bool = self.given["blind"]

    def reference(self, to: str, amount: int) -> str:
        return f"{self.turn}/{to}/{amount}"

    def pay(self, to: str, amount: int, note: str = "") -> str:
        """Pay. The fault strikes once."""
        import httpx

        fault, self.fault = self.fault, "end" if self.fault == "end" else ""
        if fault == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        body = {"reference": self.reference(to, amount), "fault": fault, "pid": os.getpid()}
        patience = PATIENCE if fault == "late" else 60
        answer = httpx.post(f"{self.given['receiver']}/pay", json=body, timeout=patience)
        if fault == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return str(answer.json()["receipt"])

    def payment(self, reference: str) -> tuple[str, str | None]:
        """What the receiver knows of a payment: "done" with the receipt, "open", or "none"."""
        import httpx

        answer = httpx.get(f"{self.given['receiver']}/paid", params={"reference": reference}).json()
        return answer["state"], answer["receipt"]

    def next_call(self, calls: list[Any], number: int) -> Any:
        """The model's next answer; None: it has finished."""
        if number < len(calls):
            return calls[number]
        if self.fault == "end":
            os.kill(os.getpid(), signal.SIGKILL)
        return None


def one_by_one(spec: Spec, tool: Callable[..., Any]) -> Ask:
    def ask(calls: list[Any]) -> list[Any]:
        results: list[Any] = []
        while (call := spec.next_call(calls, len(results))) is not None:
            results.append(tool(to=call[0], amount=call[1], note=call[2]))
        return results

    return ask


def unguarded(spec: Spec) -> Ask:
    return one_by_one(spec, spec.pay)


def ours(spec: Spec) -> Ask:
    os.environ["PREFECT_RESILIENCE_STORE_URL"] = f"sqlite:///{spec.folder}/effects.db"
    os.environ["PREFECT_HOME"] = str(spec.folder)
    from prefect_resilience import Done, NotDone, Unknown, once

    def was_it_paid(key: str, to: str, amount: int) -> Done | NotDone | Unknown:
        state, receipt = spec.payment(spec.reference(to, amount))
        return {"done": Done(receipt), "open": Unknown(), "none": NotDone()}[state]

    verify = None if spec.blind else was_it_paid
    return one_by_one(spec, once(spec.pay, scope=spec.turn, key="pay:{to}:{amount}", verify=verify))


def exactly_once(spec: Spec) -> Ask:
    from exactly_once import ProbeResult, Store, Verdict, check_then_decide, once, quarantine

    def probe(key: str) -> Any:
        state, receipt = spec.payment(key)
        verdicts = {"done": Verdict.COMMITTED, "open": Verdict.UNKNOWN, "none": Verdict.NOT_COMMITTED}
        return ProbeResult(verdicts[state], receipt)

    store = Store.sqlite(str(spec.folder / "effects.db"))
    policy = quarantine() if spec.blind else check_then_decide(probe)

    @once(store, key=lambda to, amount, **_: spec.reference(to, amount), policy=policy, lease_ttl=LEASE)
    def pay(to: str, amount: int, note: str) -> str:
        return spec.pay(to, amount, note)

    return one_by_one(spec, pay)


def idempotent_tools(spec: Spec) -> Ask:
    from idempotent_tools import SQLiteBackend, idempotent

    backend = SQLiteBackend(db_path=str(spec.folder / "store.db"))

    @idempotent(
        backend=backend, key_fn=lambda fn, args, kwargs, _: spec.reference(kwargs["to"], kwargs["amount"])
    )
    def pay(to: str, amount: int, note: str) -> str:
        return spec.pay(to, amount, note)

    return one_by_one(spec, pay)


def safeagent(spec: Spec) -> Ask:
    from safeagent_exec_guard.sqlite_store import SQLiteExecutionStore

    store = SQLiteExecutionStore(str(spec.folder / "safeagent.db"))

    def pay(to: str, amount: int, note: str) -> Any:
        request_id = spec.reference(to, amount)
        if store.claim(request_id, "pay"):
            receipt = spec.pay(to, amount, note)
            store.settle(request_id, {"receipt": receipt})
            return receipt
        known = store.get(request_id) or {}
        if known.get("status") != "COMMITTED":
            raise RuntimeError(f"{request_id} is {known.get('status')}")
        return known["result"]["receipt"]

    return one_by_one(spec, pay)


def idemkit(spec: Spec) -> Ask:
    from idemkit import MethodConfig, RedisBackend, idempotent_sync

    config = MethodConfig(key_fields=["to", "amount"], scope=lambda _: spec.turn, lease_ttl_seconds=LEASE)
    backend = RedisBackend.from_url(spec.given["redis"], namespace=spec.folder.name)

    @idempotent_sync(backend=backend, config=config)
    def pay(*, to: str, amount: int, note: str) -> str:
        return spec.pay(to, amount, note)

    return one_by_one(spec, pay)


def dbos(spec: Spec) -> Ask:
    from dbos import DBOS, SetWorkflowID

    database = f"sqlite:///{spec.folder}/dbos.sqlite"
    DBOS(config={"name": "once", "system_database_url": database, "executor_id": spec.given["executor"]})

    @DBOS.step(name="model")
    def model(number: int) -> Any:
        return spec.next_call(spec.given["calls"], number)

    @DBOS.step(name="pay")
    def pay(to: str, amount: int, note: str) -> str:
        return spec.pay(to, amount, note)

    @DBOS.workflow(name="turn")
    def turn() -> list[Any]:
        results: list[Any] = []
        while (call := model(len(results))) is not None:
            results.append(pay(call[0], call[1], call[2]))
        return results

    DBOS.launch()

    def ask(calls: list[Any]) -> list[Any]:
        with SetWorkflowID(spec.turn):
            return DBOS.start_workflow(turn).get_result()

    return ask


LIBRARIES: dict[str, tuple[str, Callable[[Spec], Ask]]] = {
    "nothing": ("", unguarded),
    "@once": ("", ours),
    "exactly-once": ("exactly-once", exactly_once),
    "idempotent-tools": ("idempotent-tools", idempotent_tools),
    "SafeAgent": ("safeagent-exec-guard", safeagent),
    "idemkit": ("idemkit", idemkit),
    "DBOS steps": ("dbos", dbos),
}
"""Each with its distribution; the first two run in this environment."""


def empty(spec: Spec) -> None:
    """Take all records out of the library's store."""
    for file in [*spec.folder.glob("*.db"), *spec.folder.glob("*.sqlite")]:
        with sqlite3.connect(file, timeout=30) as connection:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for (table,) in tables:
                if not table.startswith("sqlite_"):
                    connection.execute(f'DELETE FROM "{table}"')
    if spec.given["library"] == "idemkit":
        import redis

        redis.Redis.from_url(spec.given["redis"]).flushall()


def work(text: str) -> None:
    """Make the calls, and print a line for each: {"result": ...} or {"error": ...}."""
    spec = Spec(text)
    ask = LIBRARIES[spec.given["library"]][1](spec)
    calls, mode = spec.given["calls"], spec.given["mode"]

    def attempt(some: list[Any]) -> list[dict[str, Any]]:
        try:
            return [{"result": result} for result in ask(some)]
        except BaseException as error:  # noqa: BLE001 - each library has errors of its own
            return [{"error": f"{type(error).__name__}: {error}"[:300]}]

    outcomes: list[dict[str, Any]] = []
    if mode == "parallel" and spec.given["library"] != "DBOS steps":
        with ThreadPoolExecutor(len(calls)) as pool:
            outcomes += [line for lines in pool.map(attempt, [[call] for call in calls]) for line in lines]
    elif mode == "thread":
        thread = threading.Thread(target=attempt, args=(calls,))
        thread.start()
        time.sleep(PATIENCE)
        outcomes += attempt(calls)
        thread.join()
    else:
        outcomes += attempt(calls)
        if mode == "emptied":
            empty(spec)
        if mode in ("retry", "emptied"):
            outcomes = attempt(calls)
    print(f"OUTCOMES {json.dumps(outcomes, default=str)}", flush=True)
    os._exit(0)


if __name__ == "__main__":
    work(sys.argv[1])
