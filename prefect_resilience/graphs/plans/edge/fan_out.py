"""One node as many branches, one for each item of a list."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.info import ErrorInfo
from prefect_resilience.errors.secrets.redact import redact_data
from prefect_resilience.errors.taxonomy import ErrorCategory, FailureReason
from prefect_resilience.graphs.plans.edge.outcomes import Outcome, not_begun
from prefect_resilience.graphs.plans.failures import deeper, partial_results
from prefect_resilience.graphs.plans.model import FanOut, Node

NAMED = 5
LISTED = 1_000


class Branches:
    """The branches of one node while they run: which may start, which ended, and what they give together."""

    def __init__(self, node: Node, items: Sequence[Any], began: datetime) -> None:
        self.node = node
        self.items = items
        self.began = began
        self.outcomes: list[Outcome | None] = [None] * len(items)
        self._waiting = deque(range(len(items)))
        self._running = 0
        self._most = self.fan_out.max_concurrent or len(items)

    @property
    def fan_out(self) -> FanOut:
        assert self.node.map is not None
        return self.node.map

    @property
    def over(self) -> bool:
        return not self._running and not self._waiting

    def startable(self) -> list[int]:
        """The branches that may start now, and count as running from here on."""
        started: list[int] = []
        while self._waiting and self._running < self._most:
            started.append(self._waiting.popleft())
            self._running += 1
        return started

    def ended(self, index: int, outcome: Outcome) -> None:
        self.outcomes[index] = outcome
        self._running -= 1

    def abandon(self, reason: str, now: datetime) -> None:
        """Start no more branches: those that have not started have failed."""
        while self._waiting:
            index = self._waiting.popleft()
            self.outcomes[index] = not_begun(reason, f"{self.node.id}[{index}]", now)

    def outcome(self, now: datetime) -> Outcome:
        """What the node gives: every output in the order of the items (None where a branch failed), or the
        error that says which failed.
        """
        failed = [i for i, one in enumerate(self.outcomes) if one is None or one.error is not None]
        known: dict[str, Any] = {
            "attempts": sum(outcome.attempts for outcome in self.outcomes if outcome),
            "started_at": self.began,
            "duration": (now - self.began).total_seconds(),
        }
        if self._tolerates(len(failed)):
            return Outcome([outcome.value if outcome else None for outcome in self.outcomes], **known)
        return Outcome(None, self._error(failed, now), **known)

    def _tolerates(self, failures: int) -> bool:
        """`allow_failures` below 1 is a share of the branches, from 1 on a number of them."""
        allowed = self.fan_out.allow_failures
        return failures <= (allowed if allowed >= 1 else allowed * len(self.items))

    def _error(self, failed: list[int], now: datetime) -> ErrorContext:
        causes = {i: outcome.error for i in failed if (outcome := self.outcomes[i]) and outcome.error}
        first = next(iter(causes.values()), None)
        said = [f"{self.node.id}[{i}] ({error.summary()})" for i, error in list(causes.items())[:NAMED]]
        more = f" and {len(failed) - len(said)} more" if len(failed) > len(said) else ""
        info = ErrorInfo.of(
            ErrorCategory.SUBTASK,
            first.code if first else None,
            message=f"{len(failed)} of {len(self.items)} branches failed: {', '.join(said)}{more}",
            kind=first.kind if first else ErrorCategory.SUBTASK.kind,
            retryable=first.retryable if first else False,
            reason=FailureReason.SUBTASK_FAILURE,
        )
        good = {str(i): one.value for i, one in enumerate(self.outcomes) if one and one.error is None}
        return ErrorContext.from_info(
            info,
            timestamp=now,
            node_id=self.node.id,
            action_id=self.node.type,
            cause=None if first is None else deeper(first),
            details=redact_data(
                {
                    "branches": len(self.items),
                    "failed": failed[:LISTED],
                    "errors": {str(i): error.summary() for i, error in list(causes.items())[:LISTED]},
                    "partial_results": partial_results(good),
                }
            ),
        )
