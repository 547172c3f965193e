"""The drawing: boxes and labels do not overlap, everything points down."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience.graphs.plans.pictures.layout import WIDEST_ROW, Layout, Line, lay_out

Sizes = dict[str, tuple[float, float]]


@st.composite
def drawings(draw: st.DrawFn) -> tuple[Sizes, list[Line]]:
    names = [f"n{i}" for i in range(draw(st.integers(1, 18)))]
    side = st.integers(30, 200).map(float)
    sizes = {name: (draw(side), draw(side) / 3) for name in names}
    pairs = (
        draw(st.sets(st.sampled_from(list(combinations(names, 2))), max_size=25)) if len(names) > 1 else set()
    )
    labels = st.just((0.0, 0.0)) | st.tuples(side, st.just(18.0))
    return sizes, [Line(source, target, draw(labels)) for source, target in sorted(pairs)]


def area(layout: Layout, sizes: Sizes, name: str) -> tuple[float, float, float, float]:
    (x, y), (width, height) = layout.boxes[name], sizes[name]
    return x, y, x + width, y + height


def apart(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    near = 0.01
    return (
        one[2] <= other[0] + near
        or other[2] <= one[0] + near
        or one[3] <= other[1] + near
        or other[3] <= one[1] + near
    )


@given(drawings())
@settings(max_examples=80, deadline=None)
def test_boxes_and_labels_do_not_overlap_and_arrows_point_down(drawing: tuple[Sizes, list[Line]]) -> None:
    sizes, lines = drawing
    layout = lay_out(sizes, lines)
    areas = {name: area(layout, sizes, name) for name in sizes}
    for line, way in zip(lines, layout.ways, strict=True):
        assert way.points[0][1] == areas[line.source][3]
        assert way.points[-1][1] == areas[line.target][1]
        assert areas[line.source][3] < areas[line.target][1]
        assert all(down >= up for (_, up), (_, down) in pairwise(way.points))
        if line.label[0]:
            (x, y), (width, height) = way.label, line.label
            areas[f"label {line}"] = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    for one, other in combinations(areas.values(), 2):
        assert apart(one, other)
    for left, top, right, bottom in areas.values():
        assert left >= -layout.width / 2 - 0.01
        assert top >= -0.01
        assert right <= layout.width / 2 + 0.01
        assert bottom <= layout.height + 0.01


def test_nothing_to_draw() -> None:
    assert lay_out({}, []) == Layout(0.0, 0.0, {}, [])


def test_a_chain_is_straight() -> None:
    sizes = dict.fromkeys("abc", (90.0, 40.0))
    layout = lay_out(sizes, [Line("a", "b"), Line("b", "c")])
    assert {x for x, _ in layout.boxes.values()} == {-45.0}
    assert len({x for way in layout.ways for x, _ in way.points}) == 1


def test_a_box_is_near_what_leads_to_it() -> None:
    sizes = dict.fromkeys("abcdef", (90.0, 40.0))
    layout = lay_out(sizes, [Line("a", "f"), Line("b", "e"), Line("c", "d")])
    order = {name: x for name, (x, _) in layout.boxes.items()}
    assert (order["a"] < order["b"]) == (order["f"] < order["e"])
    assert (order["b"] < order["c"]) == (order["e"] < order["d"])


def test_a_wide_layer_goes_into_several_rows() -> None:
    sizes = {f"n{i}": (90.0, 40.0) for i in range(3 * WIDEST_ROW)}
    layout = lay_out(sizes, [Line("n0", name) for name in list(sizes)[1:]])
    assert len({y for _, y in layout.boxes.values()}) == 1 + 3
