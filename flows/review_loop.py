"""A writer and a reviewer, two language models, in a loop that ends when the text is good or nothing changes.

`python -m flows.review_loop` runs it on two providers on loopback. In the table that it prints, watch

- the rounds: each is a task run with its number, `round[1]`, `round[2]`; the score rises until the loop ends;
- the review of round 2 is no JSON at first: the reviewer is asked again, is told what was wrong with its
  answer, and the run ends well; without `Expect(..., repair=True)` the loop would end there;
- the second loop, whose writer changes nothing any more: after 3 such rounds it ends as `no_progress`, with
  its whole history, and is not left to use up its rounds (and your money);
- the third, whose reviewer never gives JSON: given up after 3 tries, with the last answer kept in the error.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from prefect import flow
from pydantic import BaseModel

from flows.llm_board import Board
from flows.llm_providers import ask_anthropic, ask_openai
from flows.llm_service import LLMService
from flows.own_process import apart
from flows.serving import at, running
from prefect_resilience import (
    Backoff,
    ErrorContext,
    Expect,
    NoProgress,
    Retry,
    error_context,
    iterate,
    path,
    resilient_task,
)

TOPICS = ["dose", "interactions", "children", "warnings"]
RETRY = Retry(attempts=3, backoff=Backoff.exponential(initial=0.1, maximum=2))


class Review(BaseModel):
    score: float
    missing: list[str]


def model(prompt: str) -> str:
    """Both models: the writer adds the next topic that it is told is missing, the reviewer counts topics."""
    task, _, text = prompt.partition(": ")
    if task == "Write":
        draft, _, missing = text.partition(" | add: ")
        return f"{draft} {missing.partition(',')[0]}".strip()
    found = [topic for topic in TOPICS if topic in text]
    missing = [topic for topic in TOPICS if topic not in found]
    return json.dumps({"score": len(found) / len(TOPICS), "missing": missing})


SERVICE = LLMService(model=model)
BOARD = Board("what the reviewer does", "what the writer does")


@resilient_task(retry=RETRY)
def write(draft: str, missing: list[str], address: str) -> str:
    return ask_openai(f"Write: {draft} | add: {','.join(missing)}", address)


@resilient_task(retry=RETRY, expect=Expect(Review, repair=True))
def review(draft: str, address: str, violations: list[dict[str, str]] | None = None) -> str:
    hint = f" (your answer before was wrong: {violations})" if violations else ""
    return ask_anthropic(f"Review: {draft}{hint}", address)


def a_round(address: str, told: bool = True) -> Callable[..., dict]:
    """A round of writing and reviewing, for `iterate`."""

    def round(previous: dict | None, round: int) -> dict:  # noqa: A001 - the runs are named by it
        before = previous or {"draft": "About aspirin:", "missing": TOPICS}
        SERVICE.given.clear()
        draft = write(before["draft"], before["missing"] if told or round == 1 else [], address)
        found = review(draft, address)
        BOARD.answer(f"round {round}", SERVICE.given, f"score {found.score:g}", draft)
        return {"draft": draft, **found.model_dump()}

    return round


@flow(name="review-loop")
def improved(address: str = "") -> str:
    """Write until the review is good. Without an address the models are in this process."""
    SERVICE.says("anthropic", "ok", "malformed", "ok")
    with at(address, SERVICE) as address:
        done = iterate(a_round(address), until=path("score") >= 0.9, max_rounds=8)
    return done.value["draft"]


@flow(name="stubborn-review-loop")
def stubborn(address: str) -> ErrorContext | None:
    """Write with a writer that ignores the review."""
    try:
        iterate(a_round(address, told=False), until=path("score") >= 0.9, max_rounds=50, patience=3)
    except NoProgress as halted:
        BOARD.line(
            "the loop", "-", "-", "no_progress", f"{len(halted.iteration_history)} rounds of 50: {halted}"
        )
        return error_context(halted)
    return None


@flow(name="review-without-json")
def without_json(address: str) -> ErrorContext | None:
    """A reviewer that cannot keep its promise."""
    SERVICE.given.clear()
    SERVICE.says("anthropic", *["malformed"] * 3)
    try:
        review("About aspirin: dose", address)
    except Exception as broken:  # noqa: BLE001 - the table shows it
        context = error_context(broken)
        kept = context.partial_output.content if context and context.partial_output else "-"
        BOARD.answer("a review", SERVICE.given, f"gave up: {context and context.category.value}", kept)
        return context
    return None


def main() -> None:
    with running(SERVICE) as address:
        improved(address)
        stubborn(address)
        without_json(address)
    BOARD.show()


if __name__ == "__main__":
    apart("flows.review_loop", main)
