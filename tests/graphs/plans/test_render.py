# ruff: noqa: E501 - what is said stands whole in its line
"""Pictures of plans: what stands in them, that nothing breaks out of them, and how large they get."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from prefect_resilience import path
from prefect_resilience.graphs.plans.model import FanOut, Node, Plan, PlanTransition
from prefect_resilience.graphs.plans.pictures.mermaid import plan_to_mermaid
from prefect_resilience.graphs.plans.pictures.picture import one_line, picture_of
from prefect_resilience.graphs.plans.pictures.svg import plan_to_svg
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


def texts(svg: str) -> list[str]:
    """What can be read in the picture; it must be XML."""
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def tooltips(svg: str) -> list[str]:
    return [title.text or "" for title in ElementTree.fromstring(svg).iter(f"{SVG}title")]


def boxes(svg: str) -> dict[str, str]:
    """The class of each box, by the first words of its tooltip."""
    groups = [g for g in ElementTree.fromstring(svg).iter(f"{SVG}g") if "class" in g.attrib]
    return {g.findtext(f"{SVG}title", "").split(" ")[0].rstrip("."): g.attrib["class"] for g in groups}


LONG = "a_name_that_goes_on_and_on_and_on_for_ever"


def result_with(**nodes: Any) -> PlanResult:
    """A result that succeeded; each node with these fields."""
    ends = {name: NodeResult(**{"status": "succeeded", **fields}) for name, fields in nodes.items()}
    return PlanResult(succeeded=True, nodes=ends, added=(node("n", "a"), node("a")))


@pytest.mark.parametrize(
    ("nodes", "result", "words"),
    [
        ([node("a", map=FanOut(over=[1, 2, 3]))], None, {"step · ×3", "a (step)"}),
        ([node("b"), node("a", "b", map=FanOut(over="{{b.output.items}}"))], None, {"step · × each of b.output.items"}),
        ([node("a"), node("l", "a", rule="always", description="Sweeps up.")], None, {"step · always", "l (step). Sweeps up"}),
        ([node("a"), node("h", "a", handles_error="a")], None, {"a routes to h, which also depends on a: on error"}),
        ([node("w", transitions=[PlanTransition(to="v", priority=7)]), node("v")], None, {"7: otherwise"}),
        ([node("a", on_failure="h"), node("b", on_success="h"), node("h")], None, {"a: on error", "b: on success"}),
        ([Node(id=LONG, type="x")], None, {f"{LONG} (x)", f"{LONG[:37]}…"}),
        ([node("a"), node("b", "a")], result_with(a={}), {"succeeded: 1 succeeded, 2 not run"}),
        ([node("a")], PlanResult(succeeded=False), {"failed: 1 not run"}),
        ([node("a")], result_with(a={"status": "skipped"}), {"skipped"}),
        ([node("a", map=FanOut(over="{{inputs.x}}"))], result_with(a={"output": [1] * 1200}), {"step · ×1,200"}),
        ([node("a")], result_with(a={}, n={"routed_to": ("m",)}, m={}), {"step · added while it ran", "added while it ran", "n depends on a", "n routes to m"}),
    ],
)  # fmt: skip
def test_what_stands_in_a_picture(nodes: list[Node], result: PlanResult | None, words: set[str]) -> None:
    plan = plan_of(*nodes, inputs={"x": []})
    svg = plan.to_svg(result)
    assert words <= {*texts(svg), *tooltips(svg)}
    assert plan.to_mermaid(result) == plan_to_mermaid(plan, result)
    root = ElementTree.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert root.attrib["viewBox"] == f"0 0 {width:g} {height:g}"


class TestBeforeARun:
    def test_every_node_and_every_way_with_its_condition(self) -> None:
        svg = plan_to_svg(shipped("confidence_branch"))
        said = texts(svg)
        assert {"kg_query", "generate_report", "manual_review", "confidence >= 0.9", "else"} <= set(said)
        assert "kg_query routes to manual_review: else" in tooltips(svg)
        assert boxes(svg) == dict.fromkeys(("kg_query", "generate_report", "manual_review"), "node waiting")

    def test_dependencies_handlers_and_transitions(self) -> None:
        fallback = plan_to_svg(shipped("drug_research_fallback"))
        assert texts(fallback).count("on error") == 1
        assert {"analysis depends on kg_query", "analysis depends on text_search"} <= set(tooltips(fallback))
        said = texts(plan_to_svg(shipped("failure_transitions")))
        assert {"1: state._last_error does not exist", "2: state._last_error exists"} <= set(said)

    def test_mermaid(self) -> None:
        text = plan_to_mermaid(shipped("confidence_branch"))
        assert 'n0["kg#95;query"]' in text
        assert 'n1(["generate#95;report<br/>reasoning"])' in text
        assert 'n0 -.->|"confidence #62;= 0#46;9"| n1' in text
        assert "n0 --> n2" in plan_to_mermaid(shipped("parallel_with_fallback"))


class TestAfterARun:
    def test_what_ran_what_was_skipped_and_why(self) -> None:
        plan = shipped("drug_research_fallback")
        svg = plan_to_svg(plan, result_of(plan, {"kg_query": error_at("kg_query")}))
        assert boxes(svg) == {
            "kg_query": "node handled",
            "text_search": "node succeeded",
            "analysis": "node succeeded",
        }
        said = texts(svg)
        assert {
            "↷ kg_query",
            "✓ analysis",
            "handled · 4 attempts · 2.8 s",
            "503 unavailable: kg_query broke",
        } <= set(said)
        assert "succeeded in 9.5 s: 2 succeeded, 1 handled" in said

    def test_a_failure_that_nobody_handled(self) -> None:
        plan = shipped("parallel_with_fallback")
        fails = {name: error_at(name) for name in ("kg_query", "fallback_search")}
        svg = plan_to_svg(plan, result_of(plan, fails))
        assert boxes(svg)["fallback_search"] == "node failed"
        said = texts(svg)
        assert {"✗ fallback_search", "– synthesize", "failed · 5.2 s"} <= set(said)
        assert "skipped: none of its dependencies" in said
        assert any(
            tip.endswith("produced a value: kg_query failed, fallback_search failed") for tip in tooltips(svg)
        )

    def test_taken_ways_are_strong_and_the_others_faint(self) -> None:
        plan = shipped("quality_branch")
        result = result_of(plan, outputs={"analysis": {"quality_score": 0.2}})
        taken = {(arrow.target, arrow.taken) for arrow in picture_of(plan, result).arrows}
        assert taken == {("publish_report", False), ("manual_review", True), ("refinement", True)}
        text = plan_to_mermaid(plan, result)
        assert text.count("==>") == 2
        assert text.count("-.->") == 1
        assert "✓".encode().decode() not in text
        assert "#10003; analysis" in text

    def test_a_dependency_is_taken_where_it_gave_something(self) -> None:
        plan = plan_of(
            node("a"), node("b"), node("c", "a", "b"), node("d", "a", "b", rule="always"), node("e", "a")
        )
        arrows = picture_of(plan, result_of(plan, {"a": error_at("a")})).arrows
        taken = {(arrow.source, arrow.target): arrow.taken for arrow in arrows}
        assert taken == {
            ("a", "c"): False,
            ("b", "c"): True,
            ("a", "d"): False,
            ("b", "d"): True,
            ("a", "e"): False,
        }


class TestHostileTexts:
    plan = plan_of(
        *(
            Node(
                id=f"n{i}",
                type=text,
                description=text,
                on_success=f"n{i + 1}",
                condition=path("x") == text.replace("\ud800", ""),
            )
            for i, text in enumerate(HOSTILE)
        ),
        node(f"n{len(HOSTILE)}"),
        name=" ".join(HOSTILE[:3]),
        intent="x",
    )

    def test_the_svg_is_xml_with_nothing_in_it_but_shapes_and_texts(self) -> None:
        for result in (None, result_of(self.plan, {"n3": error_at(HOSTILE[1])})):
            root = ElementTree.fromstring(plan_to_svg(self.plan, result))
            assert {one.tag for one in root.iter()} <= {
                f"{SVG}{tag}" for tag in ("svg", "g", "rect", "path")
            } | {f"{SVG}{tag}" for tag in ("text", "title", "circle")}
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
        plan = plan_of(
            Node(id="a", type="x", description=f"with {key}", condition=path("k") == key, on_success="b"),
            node("b"),
        )
        result = PlanResult(succeeded=False, nodes={"a": NodeResult(status="skipped", reason=key)})
        for picture in (plan_to_svg(plan, result), plan_to_mermaid(plan, result)):
            assert "aaaaaaaa" not in picture


class TestSize:
    @pytest.mark.parametrize("name", ["chain", "wide", "layers"])
    def test_large_plans_are_cut_and_say_so(self, name: str) -> None:
        size = 700
        plan = plan_of(
            *{
                "chain": lambda: (node(f"n{i}", *([f"n{i - 1}"] if i else [])) for i in range(size)),
                "wide": lambda: (node(f"n{i}", *(["n0"] if i else [])) for i in range(size)),
                "layers": lambda: (
                    node(
                        f"n{i}",
                        *(f"n{(i // 50 - 1) * 50 + (i * 7 + k * 13) % 50}" for k in range(5) if i >= 50),
                    )
                    for i in range(size)
                ),
            }[name]()
        )
        svg, text = plan_to_svg(plan, result_of(plan, {f"n{size - 1}": error_at("x")})), plan_to_mermaid(plan)
        assert len(boxes(svg)) == 300
        assert boxes(svg)[f"n{size - 1}"] == "node failed"
        sentence = "300 of 700 nodes are drawn: those that failed, then the first of the others."
        assert any(line.startswith(sentence) for line in texts(svg))
        assert len(svg) < 700_000
        assert len(text) < 50_000
        assert 'note["300 of 700 nodes are drawn' in text
        assert len(re.findall(r"--> n\d", text)) <= 500

    def test_as_many_arrows_as_can_be_followed(self) -> None:
        plan = plan_of(*(node(f"n{i}", *(f"n{j}" for j in range(i))) for i in range(40)))
        picture = picture_of(plan)
        assert len(picture.arrows) == 450
        assert picture.note == "450 of 780 arrows between them are drawn."

    def test_mermaid_gets_what_it_takes(self) -> None:
        reason = "漢" * 114
        plan = plan_of(*(node(f"n{i}") for i in range(300)))
        ends = {f"n{i}": NodeResult(status="skipped", reason=reason) for i in range(300)}
        text = plan_to_mermaid(plan, PlanResult(succeeded=True, nodes=ends))
        assert "of 300 nodes are drawn" in text
        assert 20_000 < len(text) <= 45_000

    def test_titles_of_mermaid_are_short(self) -> None:
        plan = shipped("drug_research_fallback")
        assert 'title: "Aspirin interactions: knowledge graph first, text search if it…"' in plan_to_mermaid(
            plan
        )
        assert 'title: "succeeded in 5.6 s' in plan_to_mermaid(plan, result_of(plan))
        assert "title" not in plan_to_mermaid(plan_of(node("a")))
        quoted = plan_to_mermaid(plan_of(node("a"), name='a "b" \\ <c> & d'))
        assert 'title: "a \\"b\\" \\\\ ‹c› ＆ d"' in quoted


def test_the_same_plan_gives_the_same_picture() -> None:
    plan = shipped("drug_research_fallback")
    result = result_of(plan, {"kg_query": error_at("kg_query")})
    again = Plan.model_validate(plan.model_dump(mode="json"))
    assert plan_to_svg(plan, result) == plan_to_svg(again, result)
    assert plan_to_mermaid(plan, result) == plan_to_mermaid(again, result)


def test_texts_on_one_line() -> None:
    assert one_line("a\n b\tc", 10) == "a b c"
    assert one_line("abcdef", 4) == "abc…"
    assert one_line("a\x00b\ud800", 10) == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"
