# ruff: noqa: E501 - what is said stands whole in its line
"""The registry of actions: names, inputs that fit, and what their docstrings say."""

from __future__ import annotations

import datetime as dt
import functools
import sys
import textwrap
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Optional

import pytest
from prefect import task
from pydantic import BaseModel

from prefect_resilience import ConfigurationError, ErrorContext, resilient_task
from prefect_resilience.graphs.plans.actions import REGISTERED, Actions, action, parameters_of
from prefect_resilience.graphs.plans.model import Node
from prefect_resilience.graphs.plans.reading.mistakes import place_text


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(REGISTERED, "_known", {})


class Session:
    """What pydantic knows nothing of."""


class Depth(Enum):
    SHALLOW = "shallow"
    DEEP = "deep"


class Limits(BaseModel):
    most: int
    since: dt.date | None = None


def search(
    query: str, top: int = 10, *, limits: Limits | None = None, error: ErrorContext | None = None
) -> dict:
    """Search the library."""
    return {"query": query, "top": top, "limits": limits, "error": error}


def said(actions: Actions, **node: Any) -> list[str]:
    made = Node.model_validate({"id": "n", "type": "search", **node})
    return [f"{place_text(('tasks', 3, *place))}: {says}" for place, says in actions.mistakes(made)]


# -- registering


def test_the_decorator_gives_back_the_very_same_object() -> None:
    plain, prefects, ours = (lambda: 1), task(search), resilient_task(retry=None)(search)
    assert action("plain")(plain) is plain
    assert action("prefects")(prefects) is prefects
    assert action("ours")(ours) is ours
    assert plain() == 1
    found = Actions.of(None)
    assert [found.get(name).is_task for name in ("plain", "prefects", "ours")] == [False, True, True]
    assert found.get("ours").function is search
    assert found.names() == ["ours", "plain", "prefects"]


def test_a_name_is_registered_once_and_both_places_are_named() -> None:
    def first() -> None: ...
    def second() -> None: ...

    action("mail")(first)
    action("mail")(first)
    with pytest.raises(ConfigurationError) as caught:
        action("mail")(second)
    assert "the action 'mail' is registered twice" in str(caught.value)
    assert "first (line" in str(caught.value)
    assert "second (line" in str(caught.value)


@pytest.mark.parametrize("name", ["", "  ", None, print])
def test_an_action_needs_a_name(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="an action needs a name"):
        action(name)


def test_what_cannot_be_an_action_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be a function or a task, not 3"):
        Actions.of({"three": 3})  # type: ignore[dict-item]

    def positional(query: str, /) -> None: ...

    with pytest.raises(ConfigurationError, match="takes 'query' by position only"):
        action("positional")(positional)


def test_a_mapping_comes_before_what_is_registered() -> None:
    action("search")(search)
    action("other")(print)
    double = Actions.of({"search": lambda query: query})
    assert double.get("search").function is not search
    assert double.get("other").function is print
    assert double.names() == ["other", "search"]
    assert Actions.of(double) is double


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "team_actions.py").write_text(
        textwrap.dedent(
            """
            from prefect_resilience.graphs.plans.actions import action

            @action("from_team")
            def from_team(x: int = 1) -> int:
                return x
            """
        )
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "team_actions"
    sys.modules.pop("team_actions", None)


def test_modules_are_imported_for_their_actions(module: str) -> None:
    assert Actions.of([module]).get("from_team").function(3) == 3
    del sys.modules[module]
    assert Actions.of(module).get("from_team") is not None


def test_a_module_that_is_not_there(module: str) -> None:
    with pytest.raises(
        ConfigurationError, match="the module of actions 'no_such_team' cannot be imported: ModuleNot"
    ):
        Actions.of(["no_such_team"])
    with pytest.raises(
        ConfigurationError, match="neither a mapping of names to functions nor the name of a module"
    ):
        Actions.of([search])  # type: ignore[list-item]


def test_a_module_with_two_actions_of_one_name_says_so(module: str, tmp_path: Path) -> None:
    text = (tmp_path / "team_actions.py").read_text()
    (tmp_path / "team_actions.py").write_text(text + '\n@action("from_team")\ndef from_team(): ...\n')
    with pytest.raises(ConfigurationError, match="registered twice"):
        Actions.of([module])


# -- what a node may ask of one


def stamp(error: Any) -> None: ...
def anything(**given: Any) -> None: ...
def takes(when: dt.datetime, tags: set[str], who: Any = None) -> None: ...


@functools.wraps(search)
def around(*args: Any, **kwargs: Any) -> Any:
    return search(*args, **kwargs)


WRITTEN = "write it in the input"
FITS = {"query": "aspirin", "top": 3, "limits": {"most": 5, "since": "2026-11-21"}}


@pytest.mark.parametrize(
    ("function", "node", "mistakes"),
    [
        (search, {"input": FITS}, []),
        (search, {"input": {"query": "{{inputs.drug}}", "top": "{{inputs.top}}"}}, []),
        (search, {"map": {"over": ["a"], "as": "query"}}, []),
        (around, {"input": {"query": "x"}}, []),
        (functools.partial(search, top=3), {"input": {"query": "x"}}, []),
        (anything, {"input": {"x": 1, "y": 2}}, []),
        (takes, {"input": {"when": "2026-11-21T10:00:00Z", "tags": ["a"]}}, []),
        (search, {"type": "serch"}, ["tasks[3].type: unknown action 'serch'; did you mean 'search'?"]),
        (None, {}, ["tasks[3].type: unknown action 'search', because none is registered: write @action('search')"]),
        (search, {}, [f"tasks[3].input: 'search' needs 'query': {WRITTEN}"]),
        (search, {"input": {"query": "x", "topp": 3}}, ["tasks[3].input.topp: 'topp' is not an input of 'search'; did you mean 'top'?"]),
        (search, {"input": {"query": 5}}, ["tasks[3].input.query: query=5 is not a valid str: input should be a valid string"]),
        (search, {"input": {"query": "x", "top": "3"}}, ["tasks[3].input.top: top='3' is not a valid int: input should be a valid integer"]),
        (search, {"input": {"topp": 1, "limits": 3}}, ["tasks[3].input.topp", f"tasks[3].input: 'search' needs 'query': {WRITTEN}", "tasks[3].input.limits: limits=3"]),
        (stamp, {"input": {"x": 1}}, ["tasks[3].input.x: 'x' is not an input of 'search', which has no inputs"]),
        (anything, {"input": {"wait_for": 1}}, ["tasks[3].input.wait_for: 'wait_for' is an option of Prefect's tasks"]),
    ],
)  # fmt: skip
def test_mistakes_have_their_place_and_the_nearest_name(
    function: Any, node: dict[str, Any], mistakes: list[str]
) -> None:
    found = said(Actions.of(function and {"search": function}), **node)
    assert len(found) == len(mistakes)
    assert all(map(str.startswith, found, mistakes)), found


def test_a_mistake_inside_a_model_names_its_place() -> None:
    [found] = said(Actions.of({"search": search}), input={"query": "x", "limits": {"most": "many"}})
    assert found.endswith("['most']: input should be a valid integer")


def test_an_annotation_that_cannot_be_checked_takes_anything() -> None:
    def uses(session: Session, later: Unknown = None, text: "Missing" = None) -> None: ...  # type: ignore # noqa: F821, UP037

    actions = Actions.of({"search": uses})
    assert said(actions, input={"session": 1, "later": 2, "text": 3}) == []
    assert actions.get("search").convert({"session": 1, "later": 2}) == {"session": 1, "later": 2}


# -- inputs as the annotations want them


def convert(annotation: Any, value: Any) -> Any:
    def takes(x: Any) -> None: ...

    takes.__annotations__["x"] = annotation
    return parameters_of(takes)["x"].convert(value)


def test_json_becomes_what_the_annotation_says() -> None:
    assert convert(Limits, {"most": 3}) == Limits(most=3)
    assert convert(Optional[Limits], None) is None  # noqa: UP045
    assert convert(dt.date, "2026-11-21") == dt.date(2026, 11, 21)
    assert convert(Depth, "deep") is Depth.DEEP
    assert convert(set[int], [1, 2]) == {1, 2}
    assert convert(Path, "a/b") == Path("a/b")
    given = Limits(most=1)
    assert convert(Limits, given) is given


@pytest.mark.parametrize(
    "annotation",
    [Any, str, int, dict, dict[str, Any], list[int], Mapping[str, Any], int | None, "whatever", object],
)
def test_plain_json_is_left_alone(annotation: Any) -> None:
    value = {"a": [1, "2"]}
    assert convert(annotation, value) is value


def test_a_value_that_is_no_json_is_checked_in_python() -> None:
    def takes(x: Depth, y: bytes) -> None: ...

    parameters = parameters_of(takes)
    assert parameters["x"].refuses(Depth.DEEP) == ""
    assert "is no" in parameters["x"].refuses(object())
    assert parameters["y"].refuses(b"x") == ""
