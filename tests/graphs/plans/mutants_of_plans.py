"""Plans with mistakes in them, made from the right ones: `mutant(seed)` is always the same."""

from __future__ import annotations

import json
import time
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import yaml

from prefect_resilience.graphs.plans.model import Plan
from prefect_resilience.graphs.plans.reading.mistakes import Mistake, PlanError
from prefect_resilience.graphs.plans.reading.reading import read_plan
from tests.graphs.plans.hostile_plans import ESCAPES

FILES = Path(__file__).parent / "files"
RICH: dict[str, Any] = {
    "name": "everything",
    "inputs": {"drug": "aspirin"},
    "bounds": {"nodes": 500, "seconds": 60},
    "tasks": [
        {
            "id": "load",
            "type": "load",
            "input": {"q": "{{inputs.drug}}", "deep": [{"x": ["{{inputs.drug}}!"]}]},
        },
        {
            "id": "each",
            "kind": "reasoning",
            "depends_on": "load",
            "map": {"over": "{{load.output.items}}", "as": "doc", "max_concurrent": 3, "allow_failures": 0.1},
            "input": {"prompt": "{{doc.text | default('none') | trim}} of {{index + 1}}"},
            "retry_policy": {"attempts": 3, "by_category": {"rate_limit": 5}, "backoff": {"kind": "linear"}},
            "cache": {"ttl": 60, "key": "{{doc.id}}"},
            "circuit": {"name": "llm", "open_for": 5},
            "effect": {"kind": "external", "key": "k"},
        },
        {
            "id": "judge",
            "type": "judge",
            "depends_on": ["each", "load"],
            "trigger_rule": "all_success",
            "condition": {
                "type": "all",
                "conditions": [
                    {"type": "comparison", "operator": "gte", "path": "score", "value": 0.5},
                    {"type": "not", "condition": {"type": "exists", "path": "x", "source_task": "load"}},
                ],
            },
            "on_success": "publish",
            "transitions": [{"to_node_id": "again", "priority": 2}, {"to": "again", "condition": None}],
        },
        {"id": "again", "type": "x", "input": {"e": "{{state._last_error.code}} {{judge.status}}"}},
        {"id": "publish", "type": "x", "timeout_ms": 1000, "input": {"a": '{{nodes["each"].output}}'}},
    ],
}
VALUES: list[Any] = [
    None, True, False, 0, -1, 1.5, 10**30, 1e308, "", " ", "a", "kg_query", "nope", "gte ", [], {}, [None],
    {"": 1}, [[[]]], {"id": "a"}, {"tasks": []}, "{{", "{{kg_query.output}}", "{{a.b.c}}", "\0", "é",
    "x" * 300, "a.b[0]", *ESCAPES.values(),
]  # fmt: skip
ALIEN: list[Any] = [float("nan"), float("inf"), 10**400, b"x", {1, 2}, object(), {1: 2}, (1, 2), "\ud800"]


def mutant(seed: int) -> Any:
    """A plan with one to four mutations: as data, as JSON, as YAML, or as text with bytes changed."""
    random = Random(seed)
    plans: list[Any] = [json.loads(path.read_text()) for path in sorted(FILES.glob("*.json"))]
    plan = deepcopy(random.choice([*plans, RICH]))
    for _ in range(random.randint(1, 4)):
        plan = _mutated(plan, random)
    form = random.random()
    if form < 0.1:
        return _with_alien(plan, random)
    if form < 0.5 or not isinstance(plan, dict):
        return plan if isinstance(plan, dict) else json.dumps(plan)
    if form < 0.6:
        return yaml.dump(plan, Dumper=yaml.CSafeDumper)
    written = json.dumps(plan, indent=random.choice([None, 1]))
    return written if form < 0.8 else _damaged(written, random)


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        inside = waiting.pop()
        keys: Any = inside if isinstance(inside, dict) else range(len(inside))
        for key in keys:
            found.append((inside, key))
            if isinstance(inside[key], dict | list):
                waiting.append(inside[key])
    return found


def _mutated(plan: Any, random: Random) -> Any:
    if not isinstance(plan, dict | list) or not plan:
        return plan
    inside, key = random.choice(_places(plan))
    kind = random.randrange(8)
    if kind == 0:
        del inside[key]
    elif kind == 1:
        inside[key] = deepcopy(random.choice(VALUES))
    elif kind == 2 and isinstance(inside, dict):
        inside[_typo(str(key), random)] = inside.pop(key)
    elif kind == 3 and isinstance(inside, list):
        inside.insert(random.randrange(len(inside) + 1), deepcopy(inside[key]))
    elif kind == 4:
        for _ in range(random.choice([1, 3, 120])):
            inside[key] = [inside[key]] if random.random() < 0.5 else {"not": inside[key]}
    elif kind == 5 and isinstance(inside[key], str):
        inside[key] = _typo(inside[key], random)
    elif kind == 6:
        other, at = random.choice(_places(plan))
        inside[key] = deepcopy(other[at])
    elif isinstance(inside, dict):
        inside[
            random.choice(["map", "condition", "cache", "effect", "circuit", "x", "on_failure", "input"])
        ] = deepcopy(random.choice(VALUES))
    return plan


def _typo(word: str, random: Random) -> str:
    at = random.randrange(len(word) + 1)
    return random.choice(
        [word[:at] + word[at + 1 :], word[:at] + "x" + word[at:], word.upper(), word + " ", ""]
    )


def _with_alien(plan: Any, random: Random) -> Any:
    if isinstance(plan, dict) and plan:
        inside, key = random.choice(_places(plan))
        inside[key] = random.choice(ALIEN)
        return plan
    return random.choice(ALIEN)


def _damaged(text: str, random: Random) -> str:
    at = random.randrange(len(text))
    return random.choice(
        [
            text[:at],
            text[:at] + random.choice('{}[]",:\\\n\0NaN') + text[at:],
            text[:at] + text[at + 1 :],
            text * 2,
        ]
    )


def read(seed: int) -> tuple[Plan | None, float]:
    """The plan if it is right, and the seconds. Whatever else than a well-placed refusal comes is raised."""
    source = mutant(seed)
    began = time.process_time()
    plan, mistakes = None, ()
    try:
        plan = read_plan(source)
    except PlanError as error:
        mistakes = error.mistakes
    seconds = time.process_time() - began
    if plan is None:
        assert mistakes, seed
        assert all(map(well_said, mistakes)), seed
    else:
        again = Plan.model_validate(plan.model_dump(mode="json", by_alias=True, exclude_defaults=True))
        # in data of Python's own a tuple becomes a list
        assert again == plan or again.model_dump_json() == plan.model_dump_json(), seed
    return plan, seconds


def well_said(mistake: Mistake) -> bool:
    placed = mistake.place or mistake.message.startswith("a plan is an object")
    return bool(placed and mistake.message) and str(mistake).isprintable()
