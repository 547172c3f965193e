"""Plans that are made to do harm, by name: run as a program, each of them is read in a process of its own.

    python -m tests.graphs.plans.hostile_plans

prints a line of JSON for each: the seconds and the megabytes that reading took, and its mistakes.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from prefect_resilience.graphs.plans.reading.mistakes import PlanError
from prefect_resilience.graphs.plans.reading.reading import read_plan


def node(name: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "type": "x", **fields}


def text(*nodes: Any, **fields: Any) -> str:
    return json.dumps({"tasks": list(nodes), **fields})


def with_input(written: str) -> str:
    return '{"tasks": [{"id": "a", "type": "x", "input": {"p": ' + written + "}}]}"


def laughs() -> str:
    lines = ["l0: &l0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 10)]
    return "\n".join([*lines, "tasks: *l9", ""])


def merged_laughs() -> str:
    lines = ["l0: &l0 {a: 1, b: 2}"]
    lines += [f"l{n}: &l{n} {{x: *l{n - 1}, y: *l{n - 1}, '<<': [*l{n - 1}]}}" for n in range(1, 60)]
    return "\n".join([*lines, "tasks: []", ""])


def template(written: str) -> str:
    return text(node("a"), node("b", depends_on=["a"], input={"p": written}))


def ring(count: int) -> str:
    return text(*(node(f"n{n}", depends_on=[f"n{(n + 1) % count}"]) for n in range(count)))


def condition(**fields: Any) -> str:
    return text(node("a", condition=fields, on_success=["b"]), node("b"))


def deep_condition(levels: int) -> str:
    inner = '{"type": "exists", "path": "x"}'
    for _ in range(levels):
        inner = '{"type": "not", "condition": ' + inner + "}"
    return '{"tasks": [{"id": "a", "type": "x", "condition": ' + inner + "}]}"


ESCAPES = {
    "mro": "{{ ''.__class__.__mro__ }}",
    "cycler": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "lipsum": "{{ lipsum.__globals__['os'] }}",
    "self": "{{ self._TemplateReference__context }}",
    "range": "{{ range(10**9) | list }}",
    "call": "{{ a.output.strip() }}",
    "for": "{% for i in range(10**9) %}x{% endfor %}",
    "set": "{% set x = 1 %}",
    "import": "{% import 'os' as os %}",
    "include": "{% include '/etc/passwd' %}",
    "raw": "{% raw %}{{ a }}{% endraw %}",
    "comment": "a {# hidden #} b",
    "power": "{{ 9**9**9 }}",
    "times": "{{ 'a' * 10**9 }}",
    "format": "{{ '{0.__class__}'.format(a) }}",
    "format filter": "{{ '%s' | format(a.output) }}",
    "attr": "{{ a.output | attr('__class__') }}",
    "map": "{{ a.output | map('attr', '__class__') | list }}",
    "replace": "{{ 'a' | replace('', a.output) }}",
    "getitem": "{{ a.output['__class__'] }}",
    "concatenated getitem": "{{ ''['__cla' ~ 'ss__'].x() }}",
    "tuple": "{{ ().__class__.__base__ }}",
    "deep brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "many nots": "{{ " + "not " * 20000 + "1 }}",
    "long chain": "{{ a.output" + ".x" * 20000 + " + 1 }}",
    "long number": "{{ 1 + " + "9" * 50000 + " }}",
    "long text": "x" * 200_000 + "{{ a.output }}",
    "unclosed": "{{ " * 10000,
    "nothing": "{{ }}",
    "unknown node": "{{ nodes['zz'].output }}",
    "any node": "{{ nodes[a.output].output }}",
    "item outside": "{{ item }}",
    "not before": "{{ b.output }}",
    "private": "{{ a._x }}",
}

HOSTILE: dict[str, Callable[[], Any]] = {
    **{f"template: {name}": (lambda written=written: template(written)) for name, written in ESCAPES.items()},
    "5,000 levels of lists": lambda: with_input("[" * 5000 + "]" * 5000),
    "100,000 levels": lambda: "[" * 100_000 + "]" * 100_000,
    "5,000 levels of YAML": lambda: "tasks:\n- " + "[" * 5000 + "]" * 5000 + "\n",
    "5,000 conditions": lambda: deep_condition(5000),
    "5,000 levels of data": lambda: nesting(5000),
    "data inside itself": lambda: inside_itself(),
    "a billion laughs": laughs,
    "laughs in a row": merged_laughs,
    "an alias inside itself": lambda: "tasks: &t\n- id: a\n  type: x\n  input: {p: *t}\n",
    "python tags": lambda: "tasks: !!python/object/apply:os.system ['id']\n",
    "a million items": lambda: text(node("a", map={"over": list(range(1_000_000))})),
    "thousands of fan-outs": lambda: text(*(node(f"n{n}", map={"over": [0] * 1000}) for n in range(200))),
    "a million nodes": lambda: '{"tasks":[' + ",".join(['{"id":"a","type":"x"}'] * 1_000_000) + "]}",
    "333,000 nodes": lambda: '{"tasks":[' + ",".join(['{"id":"a","type":"x"}'] * 333_000) + "]}",
    "ten million values": lambda: with_input("[" + "0," * 10_000_000 + "0]"),
    "a million lists": lambda: with_input("[" + "[]," * 990_000 + "[]]"),
    "33 MB": lambda: with_input('"' + "x" * 33_000_000 + '"'),
    "5 MB of YAML": lambda: "a: b\n" * 1_000_000,
    "a ring of 5,000": lambda: ring(5_000),
    "everybody waits for everybody": lambda: text(
        *(node(f"n{n}", depends_on=[f"n{m}" for m in range(200) if m != n]) for n in range(200))
    ),
    "its own handler": lambda: text(node("a", handles_error="a")),
    "the same id 20,000 times": lambda: text(*[node("a")] * 20_000),
    "1e400": lambda: with_input("1e400"),
    "5,000 digits": lambda: with_input("9" * 5000),
    "a million digits": lambda: with_input("9" * 1_000_000),
    "a huge number, as data": lambda: {"tasks": [node("a", input={"p": 10**5000})]},
    "NaN": lambda: with_input("NaN"),
    "NaN, as data": lambda: {"tasks": [node("a", timeout_ms=float("nan"))]},
    "half a character": lambda: text(node("a\ud800")),
    "an escape": lambda: text(node("\x1b[2J")),
    "a megabyte of an id": lambda: text(node("a" * 1_000_000), node("b", depends_on=["a" * 1_000_001])),
    "10,000 unknown fields": lambda: text(node("a", **{f"field_{n}": 1 for n in range(10_000)})),
    "10,000 unknown nodes": lambda: text(
        *(node(f"node_{n}", depends_on=[f"nodes_{n}x"]) for n in range(10_000))
    ),
    "a pattern that hangs": lambda: condition(type="matches", path="x", value="(a+)+$" + "(" * 2000),
    "a path that hangs": lambda: condition(type="exists", path="$" + "..[?@" * 1000),
}


def nesting(levels: int) -> dict[str, Any]:
    made: Any = 1
    for _ in range(levels):
        made = [made]
    return {"tasks": [node("a", input={"p": made})]}


def inside_itself() -> dict[str, Any]:
    made: dict[str, Any] = {}
    made["p"] = made
    return {"tasks": [node("a", input=made)]}


def measured(name: str) -> dict[str, Any]:
    """What reading one of them takes and says: processor seconds, and the peak with the plan itself."""
    source = HOSTILE[name]()
    began = time.process_time()
    mistakes: list[str] = []
    try:
        read_plan(source)
    except PlanError as error:
        mistakes = [str(mistake) for mistake in error.mistakes]
    seconds = time.process_time() - began
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"name": name, "seconds": seconds, "megabytes": megabytes, "mistakes": mistakes[:5]}


def main() -> None:
    for name in HOSTILE:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            signal.alarm(30)
            print(json.dumps(measured(name)), flush=True)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
