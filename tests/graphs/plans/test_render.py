# ruff: noqa: E501 - what is said stands whole in its line
"""Pictures of plans: what stands in them, that nothing breaks out of them, and how large they get."""

import re
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience import path
from prefect_resilience.graphs.plans.model import FanOut, Node, Plan
from prefect_resilience.graphs.plans.picture import (
    Pair,
    Size,
    lay_out,
    picture_of,
    plan_to_mermaid,
    plan_to_svg,
)
from prefect_resilience.graphs.plans.result import NodeResult, PlanResult
from tests.graphs.plans.plan_builders import PLANS, error_at, node, result_of

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = [
    '"];click n0 "javascript:alert(1)"',
    '<script>alert("1")</script>',
    "&amp; #quot; #35; %%{init: {}}%%",
    "end",
    "]]> -->|x| --> ```",
    "`md` **bold** 1. first\nsecond\r\n---",
    "漢字 \u202e rtl \ud800 \x00\x1b[31m",
    "'; DROP",
]


def plan_of(*nodes: Node, **fields: Any) -> Plan:
    return Plan(tasks=nodes, **fields)


def shipped(name: str) -> Plan:
    return Plan.from_file(PLANS / f"{name}.json")


def texts(svg: str) -> set[str]:
    """What can be read in the picture; it must be XML."""
    return {text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")}


def boxes(svg: str) -> dict[str, str]:
    """The class of each box, by its name."""
    groups = [g for g in ElementTree.fromstring(svg).iter(f"{SVG}g") if "class" in g.attrib]
    return {g.findtext(f"{SVG}title", ""): g.attrib["class"].removeprefix("node ") for g in groups}


LONG = "a_name_that_goes_on_and_on_and_on_for_ever"


def result_with(**nodes: Any) -> PlanResult:
    """A result that succeeded; each node with these fields."""
    ends = {name: NodeResult(**{"status": "succeeded", **fields}) for name, fields in nodes.items()}
    return PlanResult(succeeded=True, nodes=ends, added=(node("n", "a"),))


@pytest.mark.parametrize(
    ("nodes", "result", "words"),
    [
        ([node("b"), node("a", "b", map=FanOut(over="{{b.output.items}}"))], None, {"step · ×"}),
        ([node("a"), node("l", "a", rule="always")], None, {"step · always"}),
        ([node("a"), node("h", "a", handles_error="a")], None, {"on error"}),
        ([node("a", on_failure="h"), node("b", on_success="h"), node("h")], None, {"a: on error", "b: on success"}),
        ([Node(id=LONG, type="x")], None, {f"{LONG[:37]}…"}),
        ([node("a")], PlanResult(succeeded=False), {"failed: no nodes"}),
        ([node("a")], result_with(a={"status": "skipped"}), {"skipped"}),
        ([node("a", map=FanOut(over="{{inputs.x}}"))], result_with(a={"output": [1] * 1200}), {"step · ×1,200"}),
        ([node("a")], result_with(a={}, n={"routed_to": ("m",)}), {"✓ a", "✓ n"}),
        (shipped("confidence_branch").tasks, None, {"kg_query", "generate_report", "confidence >= 0.9", "else"}),
        (shipped("failure_transitions").tasks, None, {"1: state._last_error does not exist", "2: state._last_error exists"}),
    ],
)  # fmt: skip
def test_what_stands_in_a_picture(nodes: list[Node], result: PlanResult | None, words: set[str]) -> None:
    plan = plan_of(*nodes, inputs={"x": []})
    svg = plan.to_svg(result)
    assert words <= texts(svg)
    assert plan.to_mermaid(result) == plan_to_mermaid(plan, result)
    root = ElementTree.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert root.attrib["viewBox"] == f"0 0 {width:g} {height:g}"


def test_mermaid() -> None:
    text = plan_to_mermaid(shipped("confidence_branch"))
    assert 'n0["kg#95;query"]' in text
    assert 'n1(["generate#95;report<br/>reasoning"])' in text
    assert 'n0 -.->|"confidence #62;= 0#46;9"| n1' in text
    assert "n0 --> n2" in plan_to_mermaid(shipped("parallel_with_fallback"))
    plan = shipped("drug_research_fallback")
    assert 'title: "Aspirin interactions: knowledge graph first, text search if it…"' in plan_to_mermaid(plan)
    assert 'title: "succeeded: ' in plan_to_mermaid(plan, result_of(plan))
    assert "title" not in plan_to_mermaid(plan_of(node("a")))
    quoted = plan_to_mermaid(plan_of(node("a"), name='a "b" \\ <c> & d'))
    assert 'title: "a \\"b\\" \\\\ ‹c› ＆ d"' in quoted


@pytest.mark.parametrize(
    ("name", "fails", "statuses", "words"),
    [
        (
            "drug_research_fallback",
            ["kg_query"],
            {"kg_query": "handled", "text_search": "succeeded", "analysis": "succeeded"},
            {"↷ kg_query", "✓ analysis", "handled · 4 attempts · 2.8 s", "503 unavailable: kg_query broke", "succeeded: 2 succeeded, 1 handled"},
        ),
        (
            "parallel_with_fallback",
            ["kg_query", "fallback_search"],
            {"kg_query": "handled", "fallback_search": "failed", "synthesize": "skipped"},
            {"✗ fallback_search", "– synthesize", "failed · 5.2 s", "none of its dependencies produced a value: kg_query failed, fallback_search…"},
        ),
    ],
)  # fmt: skip
def test_a_run_in_a_picture(name: str, fails: list[str], statuses: dict[str, str], words: set[str]) -> None:
    plan = shipped(name)
    svg = plan_to_svg(plan, result_of(plan, {failed: error_at(failed) for failed in fails}))
    assert boxes(svg) == statuses
    assert words <= texts(svg)


class TestHostileTexts:
    plan = plan_of(
        *(
            Node(id=f"n{i}", type=text, on_success=f"n{i + 1}", condition=path("x") == text.replace("\ud800", ""))
            for i, text in enumerate(HOSTILE)
        ),
        node(f"n{len(HOSTILE)}"),
        name=" ".join(HOSTILE[:3]),
        intent="x",
    )  # fmt: skip

    def test_the_svg_is_xml_with_nothing_in_it_but_shapes_and_texts(self) -> None:
        for result in (None, result_of(self.plan, {"n3": error_at(HOSTILE[1])})):
            root = ElementTree.fromstring(plan_to_svg(self.plan, result))
            shapes = ("svg", "g", "rect", "path", "text", "title")
            assert {one.tag for one in root.iter()} <= {f"{SVG}{tag}" for tag in shapes}
            assert not any(
                name.startswith("on") or "href" in name for one in root.iter() for name in one.attrib
            )

    def test_labels_of_mermaid_have_no_sign_of_its_language(self) -> None:
        text = plan_to_mermaid(self.plan, result_of(self.plan, {"n3": error_at(HOSTILE[1])}))
        labels = re.findall(r'"([^"]*)"', text.partition("flowchart TD")[2])
        assert len(labels) == 2 * len(HOSTILE) + 1
        for label in labels:
            assert re.fullmatch(r"(?:[\w ,:;!?/()=+]|#\d+;|<br/>)*", label)
        *structure, _ = [line for line in re.sub(r'"[^"]*"', '""', text).splitlines() if "n" in line]
        assert not any("script" in line or "click" in line for line in structure)

    def test_secrets_are_masked(self) -> None:
        key = "sk-ant-api03-" + "a" * 80
        plan = plan_of(Node(id="a", type="x", condition=path("k") == key, on_success="b"), node("b"))
        result = PlanResult(succeeded=False, nodes={"a": NodeResult(status="skipped", reason=key)})
        for picture in (plan_to_svg(plan, result), plan_to_mermaid(plan, result)):
            assert "aaaaaaaa" not in picture


@pytest.mark.parametrize(
    "before",
    [lambda n: [n - 1], lambda n: [0], lambda n: [(n // 50 - 1) * 50 + (n * 7 + k * 13) % 50 for k in range(5)]],
    ids=["chain", "wide", "layers"],
)  # fmt: skip
def test_large_plans_are_cut_and_say_so(before: Any) -> None:
    plan = plan_of(*(node(f"n{n}", *(f"n{m}" for m in before(n) if 0 <= m < n)) for n in range(700)))
    svg, text = plan_to_svg(plan, result_of(plan)), plan_to_mermaid(plan)
    assert len(boxes(svg)) == 300
    assert any(line.startswith("Drawn: 300 of 700 nodes") for line in texts(svg))
    assert len(svg) < 700_000
    assert len(text) < 50_000
    assert 'note["Drawn: 300 of 700 nodes' in text
    assert len(re.findall(r"--> n\d", text)) <= 500


def test_mermaid_gets_what_it_takes() -> None:
    plan = plan_of(*(node(f"n{i}", *(f"n{j}" for j in range(i))) for i in range(40)))
    assert len(picture_of(plan).arrows) == 450
    assert picture_of(plan).note == "Drawn: 450 of 780 arrows between them"
    plan = plan_of(*(node(f"n{i}") for i in range(300)))
    ends = {f"n{i}": NodeResult(status="skipped", reason="«" * 114) for i in range(300)}
    text = plan_to_mermaid(plan, PlanResult(succeeded=True, nodes=ends))
    assert "of 300 nodes" in text
    assert 20_000 < len(text) <= 45_000


Sizes = dict[str, Size]


@st.composite
def drawings(draw: st.DrawFn) -> tuple[Sizes, list[Pair]]:
    names = [f"n{i}" for i in range(draw(st.integers(1, 18)))]
    side = st.integers(30, 200).map(float)
    sizes = {name: (draw(side), draw(side) / 3) for name in names}
    pairs = st.sets(st.sampled_from(list(combinations([*names, "n"], 2))), max_size=25)
    return sizes, sorted(pair for pair in draw(pairs) if "n" not in pair)


@given(drawings())
@settings(max_examples=80, deadline=None)
def test_boxes_do_not_overlap_and_arrows_point_down(drawing: tuple[Sizes, list[Pair]]) -> None:
    sizes, arrows = drawing
    boxes = lay_out(sizes, arrows)
    for source, target in arrows:
        assert boxes[source].bottom < boxes[target].top
    for first, second in combinations(sizes, 2):
        if boxes[first].top == boxes[second].top:
            apart = abs(boxes[first].middle - boxes[second].middle)
            assert apart >= (sizes[first][0] + sizes[second][0]) / 2
    assert all(0 <= box.top <= box.bottom for box in boxes.values())
