"""`SpendCap`: a limit on the money that the calls of a run or of a day cost."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, cast
from uuid import uuid4

from pydantic import Field

from prefect_resilience.base.drive import Blocking, Steps
from prefect_resilience.base.durations import Duration, Seconds
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards import limits
from prefect_resilience.guards.circuits import listeners, registry
from prefect_resilience.guards.limits.guarding import LimitRefused
from prefect_resilience.guards.limits.usage import Meter, MeteredLimit, Share, Usage, count_at, key_of

PREFIX = "spend/"
# Seconds between two questions of a call that waits for what running calls have reserved.
PAUSE = 0.5
# The run of calls outside of runs.
PROCESS = uuid4().hex

# -- what a call costs

# Where a request has its options: beside the others, or as with Gemini.
OPTIONS = ("", "generationConfig.", "config.")
ANSWERS = [at + name for at in OPTIONS for name in ("best_of", "n", "candidateCount", "candidate_count")]
NAMES = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens")
MOST_TOKENS = [at + name for at in OPTIONS for name in NAMES]
IN_PATH = re.compile(r"/models/([^/:]+)")


def price_of(usage: Usage, model: str) -> float | None:
    """What a call of a model costs, in USD; None for an unknown model. Raises ConfigurationError."""
    try:
        from genai_prices import Usage as Counts
        from genai_prices import calc_price
    except ImportError:
        raise ConfigurationError(
            "SpendCap needs the prices of models: pip install 'prefect-resilience[prices]'"
        ) from None
    counts = Counts(**usage._asdict())
    model = model.removeprefix("models/")
    *provider, name = re.split("[:/]", model, maxsplit=1)
    # Names at Bedrock have a colon of their own.
    for reference, provider_id in ((name, next(iter(provider), None)), (model, None), (model, "aws")):
        with suppress(LookupError, ValueError):
            return float(calc_price(counts, reference, provider_id=provider_id).total_price)
    return None


def model_of(arguments: Mapping[str, Any]) -> str:
    """The model that a call asks for; "" if its arguments do not say."""
    url = str(getattr(getattr(arguments.get("exchange"), "request", None), "url", ""))
    in_path = IN_PATH.search(url)
    return str(_request_of(arguments).get("model") or (in_path[1] if in_path else ""))


def most_of(arguments: Mapping[str, Any]) -> Usage | None:
    """The most tokens that a call can use: a token has a byte at least. None if it has no maximum."""
    body = dict(_request_of(arguments))
    if not (most := count_at(body, MOST_TOKENS)):
        return None
    return Usage(len(repr(body).encode(errors="replace")), most * (count_at(body, ANSWERS) or 1))


def _request_of(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a call asks of the model: the JSON of a request, or the arguments of a function."""
    body = arguments.get("body")
    return cast("Mapping[str, Any]", body) if isinstance(body, Mapping) else arguments


# -- the money of one run or day


class Spending(TypedDict):
    """The document of a cap, in USD."""

    name: str
    per: str
    scope: str  # the run or the day
    usd: float
    spent: float
    reserved: dict[str, float]  # the most that each running call can cost; those of a killed process stay
    reached: bool


class Purse(Share):
    """The calls of this process under one document.

    A call has an id, so that what it reserved is given back once, even if an answer of the store was lost.
    """

    keeps: ClassVar[float] = 30 * 86_400.0
    document: Spending

    def __init__(self, key: str, fresh: Spending) -> None:
        super().__init__(key, fresh)
        # One thread at a time asks the store.
        self._asking = threading.RLock()
        # The cost of each call that has ended, until the document in the store has it.
        self._ended: dict[str, float] = {}

    def is_settled(self) -> bool:
        return not self._ended

    def take(self, meter: Meter, patience: float) -> Steps[float | None]:
        usd, most, spending = cast("SpendCap", meter.limit).usd, meter.reserved, self.document
        if meter.place is not None:
            self.running.setdefault(meter.call, 0.0)  # it asks
            spending = yield Blocking(self.ask, (meter.call, most, usd))
            if meter.call in spending["reserved"]:
                return None
        if spending["spent"] + most > usd or not patience:
            raise SpendCapReachedError(spending, most)
        return min(PAUSE, patience)

    def ask(self, call: str = "", most: float = 0.0, usd: float = 0.0) -> Spending:
        """Reserve the most that a call can cost, unless it has ended, and settle the calls that have. May
        block. Returns the document."""
        with self._asking:
            with self.lock:
                running, ended, self._ended = {**self.running}, self._ended, {}
                if call in running:
                    self.running[call] = most
            was_reached = False

            def step(before: Spending, _: float) -> Spending:
                nonlocal was_reached
                held = {**before["reserved"], **running}
                held = {name: part for name, part in held.items() if part and name not in ended}
                cap = usd or before["usd"]
                # A call that is gone was settled by an exchange without an answer.
                gone = self.document["reserved"].keys() - before["reserved"].keys()
                spent = before["spent"] + sum(cost for name, cost in ended.items() if name not in gone)
                was_reached = before["reached"] and cap <= before["usd"]  # a larger cap has room
                if call in running and round(spent + sum(held.values()) + most, 9) <= cap:
                    held[call] = most
                reached = was_reached or spent + most > cap
                return {**before, "usd": cap, "spent": spent, "reserved": held, "reached": reached}

            spending, is_stored = self.change(step)
            with self.lock:
                if call in self.running and call not in spending["reserved"]:
                    self.running[call] = 0.0
                if not is_stored:
                    self._ended = ended | self._ended
        if is_stored and spending["reached"] and not was_reached:
            listeners.cap_listeners.tell(spending)
        return spending

    def end(self, call: str, reserved: float, used: float) -> None:
        if reserved:
            self._ended[call] = used

    def settle_all(self) -> None:
        self.ask()


class SpendCapReachedError(LimitRefused):
    """The call can cost more than what is left of a cap; classified as `resource_exhausted`, not retried."""

    error_category: ClassVar[str] = "resource_exhausted"

    def __init__(self, spending: Spending, most: float) -> None:
        self.usd: float = spending["usd"]
        self.spent: float = spending["spent"]
        self.most = most
        reserved = sum(spending["reserved"].values())
        subject = f"the cap {spending['name']!r}" if spending["name"] else "the cap"
        room = "in another run" if spending["per"] == "run" else "at midnight UTC"
        super().__init__(
            f"{subject} of {self.usd:g} USD a {spending['per']} has no room: "
            f"{self.spent:.4f} USD are spent, {reserved:.4f} USD are reserved, and this call "
            f"can cost {most:.4f} USD; there is room {room}, or with more usd="
        )


class SpendCap(MeteredLimit):
    """At most so much money for the calls of a run, or of a day, in the whole fleet.

        SpendCap(usd=5, per="run")

    A call reserves the most that it can cost: its `max_tokens` times the price of the output, and the bytes
    of its arguments, each a token at most, times the price of the input. It is settled by the usage in its
    answer, as with `TokenLimit`. A call that failed or was cancelled has cost nothing; one that timed out
    costs what it reserved. A call whose reservation does not fit waits for running calls, for up to
    `max_wait`; then, or when the money is spent, it raises `SpendCapReachedError`, and is not made. The
    event `prefect-resilience.cap.reached` is sent once.

    A run is the root flow run, with its subflows, tasks and calls in all processes; outside of runs it is
    this process. A day begins at midnight UTC. Caps of the same `name`, or without one, share the money.

    The model and the maximum of tokens are parameters of the function (`model`, `max_tokens`), or in the
    JSON of the request of a transport. The prices are those of the package genai-prices. Raises
    `ConfigurationError` without it, for an unknown model, and for a call without a maximum.
    """

    by_position: ClassVar[tuple[str, ...]] = ("usd",)

    usd: float = Field(gt=0, description="The most that may be spent, in USD.")
    per: Literal["run", "day"] = Field(default="run", description="The span of the cap: a run, or a day.")
    name: str | None = Field(default=None, description="The name under which calls share the cap.")
    max_wait: Seconds | None = Field(
        default=60.0, description="The longest wait for running calls, in seconds; null: no limit."
    )

    if TYPE_CHECKING:

        def __init__(
            self,
            usd: float,
            per: Literal["run", "day"] = "run",
            name: str | None = None,
            max_wait: Duration | None = 60.0,
        ) -> None: ...

    def amount(self, usage: Usage) -> float | None:
        """What the call has cost."""
        return price_of(usage, model_of(self._arguments))

    def _open(self) -> Steps[Meter]:
        model, usage = model_of(self._arguments), most_of(self._arguments)
        if not model or usage is None:
            raise ConfigurationError(
                f"SpendCap needs the {'max_tokens' if model else 'model'} of a call: give it parameters "
                "`model` and `max_tokens`, or put the cap on the transport of a client that sends them"
            )
        if (price := price_of(usage, model)) is None:
            raise ConfigurationError(f"SpendCap: genai-prices knows no price of the model {model!r}")
        if self.per == "day":
            scope = datetime.fromtimestamp(registry.link_to(None).now(), UTC).strftime("%Y-%m-%d")
        else:
            scope = (yield Blocking(limits.root_run)) or PROCESS
        name = self.final_name() or ""
        fresh = Spending(
            name=name, per=self.per, scope=scope, usd=self.usd, spent=0.0, reserved={}, reached=False
        )
        return Meter(self, Purse.of(key_of(PREFIX, f"{self.per}/{scope}/{name}"), fresh), price)
