"""The actions that every plan has.

`plan` runs another plan as a flow run of its own, `quorum` calls several actions, `vote` counts answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from prefect_resilience.base.plain import shortly
from prefect_resilience.base.policy import nearest
from prefect_resilience.base.process import setting
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.graphs.conditions.paths import Missing, PathError, check_path, look_up
from prefect_resilience.graphs.plans.model import QUORUM, Node
from prefect_resilience.graphs.plans.reading.data import is_text
from prefect_resilience.graphs.plans.reading.mistakes import Wrong
from prefect_resilience.graphs.plans.result import PlanResult
from prefect_resilience.graphs.plans.templates import has_template
from prefect_resilience.graphs.routing.rounds import Votes

if TYPE_CHECKING:
    from prefect_resilience.graphs.plans.actions import Actions


def run_quorum(
    of: list[str],
    need: int | None = None,
    key: str | None = None,
    input: dict[str, Any] | None = None,
    error: ErrorContext | None = None,
) -> Any:
    """Call several actions in parallel; the answer that enough of them gave wins.

    Args:
        of: The names of the actions; a name may occur several times.
        need: How many must give the same answer; by default more than half.
        key: A path to the part of an answer that is compared, such as label; by default the whole answer.
        input: The input of each action.

    Returns:
        The first of the answers that agree.
    """
    nest = _nest.get()
    if nest is None:
        raise ConfigurationError("the action 'quorum' works only in a plan: elsewhere call quorum(...)")
    return nest.ask(of, input or {}, majority(need, len(of)), key, error)


def run_vote(answers: list[Any], need: int | None = None, key: str | None = None) -> Any:
    """The answer that occurs often enough.

    Args:
        answers: The answers, such as {{first.output}}; null, from a node without an output, does not count.
        need: How many must be the same; by default more than half.
        key: A path to the part of an answer that is compared, such as label; by default the whole answer.

    Returns:
        The first of the answers that agree.
    """
    votes = Votes(majority(need, len(answers)), common_part(key))
    for number, answer in enumerate(answers):
        name = f"answers[{number}]"
        try:
            if answer is not None:
                votes.add(name, answer)
        except ValueError as error:
            votes.errors[name] = str(error)
        if (winner := votes.winner) is not None:
            return winner.answer
    raise votes.failure()


def mistakes_of_voting(node: Node, actions: Actions) -> list[Wrong]:
    """The mistakes in the literal input of a `quorum` or a `vote`."""
    wrong: list[Wrong] = []
    voters: Any = node.input.get("of" if node.type == QUORUM else "answers")
    of = cast("list[Any]", voters) if isinstance(voters, list | tuple) else None
    need, key = node.input.get("need"), node.input.get("key")
    if need is not None and not has_template(need):
        most = len(of) if of else None
        if isinstance(need, bool) or not isinstance(need, int) or need < 1 or (most and need > most):
            upto = f"from 1 to {most}" if most else "of at least 1"
            wrong.append((("input", "need"), f"write a whole number {upto}, not {shortly(need)}"))
    if isinstance(key, str) and not has_template(key):
        try:
            check_path(key)
        except PathError as error:
            wrong.append((("input", "key"), str(error)))
    if node.type == QUORUM and of is not None:
        wrong += dict.fromkeys(_of_voters(of, node, actions))
    return wrong


def _of_voters(of: Sequence[Any], node: Node, actions: Actions) -> Iterator[Wrong]:
    if not of:
        yield ("input", "of"), "write the names of the actions to call"
    given: Any = node.input.get("input") or {}
    for number, name in enumerate(of):
        place = ("input", "of", number)
        if not isinstance(name, str) or has_template(name):
            yield place, f"write the name of an action, not {shortly(name)}"
        elif actions.get(name) is None:
            yield place, f"unknown action {name!r}{nearest(name, actions.names())}"
        elif isinstance(given, Mapping):
            voter = node.model_copy(update={"type": name, "input": {**given}, "map": None})
            yield from ((("input", *inside), says) for inside, says in actions.mistakes(voter))


def majority(need: int | None, voters: int) -> int:
    return voters // 2 + 1 if need is None else need


def common_part(path: str | None) -> Callable[[Any], Any] | None:
    """A function that gives the value at `path` in an answer; it raises ValueError if there is none."""
    if path is None:
        return None

    def key(answer: Any) -> Any:
        part = look_up(path, answer)
        if isinstance(part, Missing):
            raise ValueError(f"the answer has no {path}")
        return part

    return key


@dataclass(frozen=True)
class Nest:
    """The position of a plan among nested plans.

    run: runs a plan inside this one. ask: runs a quorum; it gets the names of the actions, their input, how
    many must agree, the path, and the error. files: the files of the outer plans, its own last. level: the
    number of outer plans. depth: how many more levels of plans are allowed inside.
    """

    run: Callable[[Any, Mapping[str, Any] | None], PlanResult]
    ask: Callable[[list[str], dict[str, Any], int, str | None, ErrorContext | None], Any]
    files: tuple[Path, ...] = ()
    level: int = 0
    depth: int = 5


_nest: ContextVar[Nest | None] = ContextVar("prefect_resilience_plan_nest", default=None)


def current_nest() -> Nest | None:
    return _nest.get()


def nesting(nest: Nest) -> AbstractContextManager[None]:
    """Plans that run in this block are nested in `nest`."""
    return setting(_nest, nest)


def run_subplan(plan: str | dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run another plan inside this node, as a flow run of its own.

    Args:
        plan: A file, relative to the file of the outer plan, or the plan itself.
        inputs: The `inputs` of the plan.

    Returns:
        The output of each of its nodes that succeeded, by the node's id.
    """
    nest = _nest.get()
    if nest is None:
        raise ConfigurationError("the action 'plan' works only in a plan: elsewhere call run_plan(...)")
    return nest.run(locate(plan, nest.files), inputs).outputs


def locate(plan: Any, files: tuple[Path, ...]) -> Any:
    """A plan's file as an absolute path; any other value unchanged.

    Raises ConfigurationError for a file that contains itself.
    """
    if not isinstance(plan, str | Path) or (isinstance(plan, str) and is_text(plan)):
        return plan
    path = ((files[-1].parent if files else Path.cwd()) / plan).resolve()
    if path in files:
        chain = " -> ".join(file.name for file in (*files[files.index(path) :], path))
        raise ConfigurationError(f"the plan {path.name!r} contains itself: {chain}")
    return path
