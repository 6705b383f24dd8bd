"""Where the boxes and arrows of a graph go."""

from __future__ import annotations

from graphlib import CycleError
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.report.graph_layout import Layout, Spacing, lay_out

SPACING = Spacing(box_depth=100, box_breadth=40, gap_between_layers=50, gap_within_layer=10)

Graph = dict[str, list[str]]

DIGITS: Graph = {"prepare": [], "train": ["prepare"], "evaluate": ["prepare", "train"]}


def test_a_layer_is_the_longest_path() -> None:
    layout = lay_out(DIGITS, SPACING)

    assert [layout.places[name].depth for name in DIGITS] == [50, 200, 350]
    assert layout.depth == 400


def test_an_edge_over_a_layer_goes_round_the_box_in_it() -> None:
    layout = lay_out(DIGITS, SPACING)

    [long_edge] = [edge for edge in layout.edges if (edge.source, edge.target) == ("prepare", "evaluate")]
    assert [place.depth for place in long_edge.through] == [50, 200, 350]
    assert abs(long_edge.through[1].breadth - layout.places["train"].breadth) >= SPACING.box_breadth / 2


def test_a_diamond_is_symmetric() -> None:
    layout = lay_out({"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}, SPACING)

    assert layout.places["a"].breadth == layout.places["d"].breadth
    assert layout.places["b"].breadth + layout.places["c"].breadth == pytest.approx(2 * layout.places["a"].breadth)


def test_crossings_are_untangled() -> None:
    layout = lay_out({"a": [], "b": [], "c": [], "x": ["c"], "y": ["b"], "z": ["a"]}, SPACING)

    sources = sorted("abc", key=lambda name: layout.places[name].breadth)
    targets = sorted("xyz", key=lambda name: layout.places[name].breadth)
    assert ["xyz"["cba".index(name)] for name in sources] == targets


def test_a_cycle_is_reported() -> None:
    with pytest.raises(CycleError):
        lay_out({"a": [], "b": ["a", "c"], "c": ["b"]}, SPACING)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    names = [f"job_{number}" for number in range(draw(st.integers(1, 9)))]
    return {
        name: draw(st.lists(st.sampled_from(names[:number]), max_size=3)) if number else []
        for number, name in enumerate(names)
    }


@given(graphs())
def test_boxes_never_overlap_and_lie_within_the_drawing(graph: Graph) -> None:
    layout = lay_out(graph, SPACING)

    for one, other in combinations(layout.places.values(), 2):
        assert one.depth != other.depth or abs(one.breadth - other.breadth) >= SPACING.box_breadth - 1e-6
    for node in layout.places.values():
        assert SPACING.box_depth / 2 <= node.depth <= layout.depth - SPACING.box_depth / 2
        assert SPACING.box_breadth / 2 - 1e-6 <= node.breadth <= layout.breadth - SPACING.box_breadth / 2 + 1e-6


@given(graphs())
def test_every_edge_leads_forward_and_past_the_boxes(graph: Graph) -> None:
    layout = lay_out(graph, SPACING)

    assert {(edge.source, edge.target) for edge in layout.edges} == {
        (source, target) for target, sources in graph.items() for source in sources
    }
    for edge in layout.edges:
        depths = [place.depth for place in edge.through]
        assert depths == sorted(set(depths))
        for place in edge.through[1:-1]:
            assert -1e-6 <= place.breadth <= layout.breadth + 1e-6
            assert _clear_of_boxes(layout, place.depth, place.breadth)


def _clear_of_boxes(layout: Layout, depth: float, breadth: float) -> bool:
    return all(
        node.depth != depth or abs(node.breadth - breadth) >= SPACING.box_breadth / 2 - 1e-6
        for node in layout.places.values()
    )


@given(graphs())
def test_the_same_graph_is_always_drawn_alike(graph: Graph) -> None:
    assert lay_out(graph, SPACING) == lay_out(graph, SPACING)
