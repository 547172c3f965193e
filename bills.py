
from pathlib import Path

from prefect import flow, suspend_flow_run

from prefect_resilience import Effect, resilient, resilient_task


def mark(folder, name):
    with open(Path(folder) / "sent", "a") as file:
        file.write(name + "\n")
    return name

@resilient_task(effect=Effect(key="task:{order}"), persist_result=False)
def send(order: int, folder: str) -> str:
    return mark(folder, f"task:{order}")

@resilient(effect=Effect(key="call:{order}"))
def call(order: int, folder: str) -> str:
    return mark(folder, f"call:{order}")

@flow(persist_result=False)
def inner(folder: str) -> str:
    return send(2, folder)

@flow(persist_result=False)
def bill(folder: str, times: int = 2) -> list[str]:
    done = [send(1, folder), call(1, folder), inner(folder)]
    for number in range(times):
        suspend_flow_run(timeout=300, key=f"wait-{number}")
    return [*done, send(3, folder)]
