"""The drawing: boxes do not overlap, everything points down."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience.graphs.plans.pictures.layout import WIDEST_ROW, Layout, Pair, lay_out

Sizes = dict[str, tuple[float, float]]
Area = tuple[float, float, float, float]


@st.composite
def drawings(draw: st.DrawFn) -> tuple[Sizes, list[Pair]]:
    names = [f"n{i}" for i in range(draw(st.integers(1, 18)))]
    side = st.integers(30, 200).map(float)
    sizes = {name: (draw(side), draw(side) / 3) for name in names}
    pairs = (
        draw(st.sets(st.sampled_from(list(combinations(names, 2))), max_size=25)) if len(names) > 1 else set()
    )
    return sizes, sorted(pairs)


def area(layout: Layout, sizes: Sizes, name: str) -> Area:
    (x, y), (width, height) = layout.boxes[name], sizes[name]
    return x, y, x + width, y + height


def are_apart(first: Area, second: Area) -> bool:
    near = 0.01
    return (
        first[2] <= second[0] + near
        or second[2] <= first[0] + near
        or first[3] <= second[1] + near
        or second[3] <= first[1] + near
    )


@given(drawings())
@settings(max_examples=80, deadline=None)
def test_boxes_do_not_overlap_and_arrows_point_down(drawing: tuple[Sizes, list[Pair]]) -> None:
    sizes, arrows = drawing
    layout = lay_out(sizes, arrows)
    areas = {name: area(layout, sizes, name) for name in sizes}
    for source, target in arrows:
        points = layout.ways[source, target]
        assert points[0][1] == areas[source][3]
        assert points[-1][1] == areas[target][1]
        assert areas[source][3] < areas[target][1]
        assert all(down >= up for (_, up), (_, down) in pairwise(points))
    for first, second in combinations(areas.values(), 2):
        assert are_apart(first, second)
    for left, top, right, bottom in areas.values():
        assert left >= -layout.width / 2 - 0.01
        assert top >= -0.01
        assert right <= layout.width / 2 + 0.01
        assert bottom <= layout.height + 0.01


def test_a_box_is_near_what_leads_to_it() -> None:
    sizes = dict.fromkeys("abcdef", (90.0, 40.0))
    layout = lay_out(sizes, [("a", "f"), ("b", "e"), ("c", "d")])
    order = {name: x for name, (x, _) in layout.boxes.items()}
    assert (order["a"] < order["b"]) == (order["f"] < order["e"])
    assert (order["b"] < order["c"]) == (order["e"] < order["d"])


def test_a_wide_layer_goes_into_several_rows() -> None:
    sizes = {f"n{i}": (90.0, 40.0) for i in range(3 * WIDEST_ROW)}
    layout = lay_out(sizes, [("n0", name) for name in list(sizes)[1:]])
    assert len({y for _, y in layout.boxes.values()}) == 1 + 3
