"""Places the jobs of a pipeline in layers, so that its graph can be drawn.

This is the usual layered drawing (Sugiyama, Tagawa and Toda, 1981): a job's layer is the length of the longest path to
it; an edge that spans several layers gets a bend in each; jobs are ordered within layers by the barycentre of their
neighbours; then every job is moved as close to the middle of its neighbours as the order allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import NamedTuple

_SWEEPS = 8


class Spacing(NamedTuple):
    """Sizes in the drawing's units: along the flow (`depth`) and across it (`breadth`)."""

    box_depth: float
    box_breadth: float
    gap_between_layers: float
    gap_within_layer: float


class BoxCentre(NamedTuple):
    """The centre of a job's box: along the flow and across it."""

    depth: float
    breadth: float


class Edge(NamedTuple):
    """An arrow between two jobs, and the places it passes, from the source's centre to the target's."""

    source: str
    target: str
    through: tuple[BoxCentre, ...]


class Layout(NamedTuple):
    """All places; the drawing spans 0…depth along the flow and 0…breadth across it."""

    places: dict[str, BoxCentre]
    edges: tuple[Edge, ...]
    depth: float
    breadth: float


class _Bend(NamedTuple):
    """The place of an edge in a layer that it passes."""

    source: str
    target: str
    layer: int


_Vertex = str | _Bend
_Neighbours = Mapping[_Vertex, list[_Vertex]]


def lay_out(depends_on: Mapping[str, Sequence[str]], spacing: Spacing) -> Layout:
    """Return the layout of jobs, each given with the jobs that it depends on; the same graph has the same layout.

    Raise `CycleError`, a `ValueError`, for jobs that depend on each other in a cycle.
    """
    layer_of = _layers(depends_on)
    layers, paths, neighbours_before, neighbours_after = _with_bends(depends_on, layer_of)
    _order(layers, neighbours_before, neighbours_after)
    breadth_of = _breadths(layers, neighbours_before, neighbours_after, spacing)

    def place(vertex: _Vertex) -> BoxCentre:
        layer = vertex.layer if isinstance(vertex, _Bend) else layer_of[vertex]
        depth = spacing.box_depth / 2 + layer * (spacing.box_depth + spacing.gap_between_layers)
        return BoxCentre(depth, breadth_of[vertex])

    return Layout(
        places={job: place(job) for job in depends_on},
        edges=tuple(Edge(source, target, tuple(map(place, path))) for (source, target), path in paths.items()),
        depth=len(layers) * (spacing.box_depth + spacing.gap_between_layers) - spacing.gap_between_layers,
        breadth=max(breadth_of[v] + _size(v, spacing) / 2 for v in breadth_of),
    )


def _layers(depends_on: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the length of the longest path to each job."""
    layer_of: dict[str, int] = {}
    for job in TopologicalSorter(depends_on).static_order():
        layer_of[job] = max((layer_of[source] + 1 for source in depends_on[job]), default=0)
    return {job: layer_of[job] for job in depends_on}


def _with_bends(
    depends_on: Mapping[str, Sequence[str]], layer_of: Mapping[str, int]
) -> tuple[list[list[_Vertex]], dict[tuple[str, str], list[_Vertex]], _Neighbours, _Neighbours]:
    """Return the vertices of each layer and of each edge, and each one's neighbours in the layer before and after."""
    layers: list[list[_Vertex]] = [[] for _ in range(max(layer_of.values()) + 1)]
    for job, layer in layer_of.items():
        layers[layer].append(job)
    before: dict[_Vertex, list[_Vertex]] = {job: [] for job in depends_on}
    after: dict[_Vertex, list[_Vertex]] = {job: [] for job in depends_on}
    paths: dict[tuple[str, str], list[_Vertex]] = {}
    for target, sources in depends_on.items():
        for source in dict.fromkeys(sources):
            bends = [_Bend(source, target, layer) for layer in range(layer_of[source] + 1, layer_of[target])]
            for bend in bends:
                layers[bend.layer].append(bend)
                before[bend], after[bend] = [], []
            paths[source, target] = [source, *bends, target]
            for one, next_one in pairwise(paths[source, target]):
                after[one].append(next_one)
                before[next_one].append(one)
    return layers, paths, before, after


def _swept(
    layers: list[list[_Vertex]], before: _Neighbours, after: _Neighbours
) -> Iterator[tuple[list[_Vertex], _Neighbours]]:
    """Yield each layer with its neighbours before it, from first to last, then back with those after, and so on."""
    for _ in range(_SWEEPS // 2):
        yield from ((layer, before) for layer in layers)
        yield from ((layer, after) for layer in reversed(layers))


def _order(layers: list[list[_Vertex]], before: _Neighbours, after: _Neighbours) -> None:
    """Sort each layer stably by the barycentre of its neighbours, alternately forwards and backwards."""
    for layer, neighbours in _swept(layers, before, after):
        position = {v: float(index) for each in layers for index, v in enumerate(each)}
        barycentre = {v: _mean([position[n] for n in neighbours[v]], position[v]) for v in layer}
        layer.sort(key=barycentre.__getitem__)


def _breadths(
    layers: list[list[_Vertex]], before: _Neighbours, after: _Neighbours, spacing: Spacing
) -> dict[_Vertex, float]:
    """Return the centre of each vertex across the flow: close to its neighbours, in order, not overlapping, from 0."""
    centre: dict[_Vertex, float] = {}
    for layer in layers:
        centre.update(zip(layer, _apart([0.0] * len(layer), layer, spacing), strict=True))
    for layer, neighbours in _swept(layers, before, after):
        desired = [_mean([centre[n] for n in neighbours[v]], centre[v]) for v in layer]
        centre.update(zip(layer, _apart(desired, layer, spacing), strict=True))
    start = min(centre[v] - _size(v, spacing) / 2 for v in centre)
    return {v: value - start for v, value in centre.items()}


def _apart(desired: Sequence[float], layer: Sequence[_Vertex], spacing: Spacing) -> list[float]:
    """Return the positions closest to the desired ones (least squares) that keep order and distance.

    Without the distances that is isotonic regression: neighbours that would change places are pooled.
    """
    offsets = [0.0]
    for one, next_one in pairwise(layer):
        sizes = _size(one, spacing) + _size(next_one, spacing)
        offsets.append(offsets[-1] + sizes / 2 + spacing.gap_within_layer)
    pools: list[list[float]] = []
    for value, offset in zip(desired, offsets, strict=True):
        pools.append([value - offset])
        while len(pools) > 1 and _mean(pools[-2], 0.0) >= _mean(pools[-1], 0.0):
            pools[-2:] = [pools[-2] + pools[-1]]
    levels = [_mean(pool, 0.0) for pool in pools for _ in pool]
    return [level + offset for level, offset in zip(levels, offsets, strict=True)]


def _size(vertex: _Vertex, spacing: Spacing) -> float:
    return 0.0 if isinstance(vertex, _Bend) else spacing.box_breadth


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
