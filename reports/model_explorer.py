"""The model as a graph for Model Explorer, and cycles and bytes of its nodes.

The graph is a collection as documented by ``graph_builder`` of ai-edge-model-explorer; the costs
are node data as in its ``node_data_builder``, one file each.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ipuscope.profiler import Report
from ipuscope.profiler.analysis import model_graph
from ipuscope.profiler.analysis.hierarchy import paths_of
from ipuscope.profiler.analysis.operators import operators
from ipuscope.profiler.analysis.source import bytes_at_peak

_DATA = {"total_cycles": "cycles of an update", "bytes": "bytes at the fullest step"}
_GRADIENT = [{"stop": 0.0, "bgColor": "#f4f6f8"}, {"stop": 1.0, "bgColor": "#f0b23a"}]
_SHOWN = ("aten", "direction", "stage", "ipu", "total_cycles", "executions", "flops", "source")


def write(report: Report, path: Path) -> int:
    """Write the graph, and the cost files beside it; return the number of nodes. Raises OSError."""
    ops = operators(report).sort_index()
    ops["bytes"] = bytes_at_peak(report).reindex(ops.index).fillna(0).astype(int)
    order = "block" if (ops["block"] >= 0).any() else "module"
    name = str(report.meta["model"]) or "model"
    edges: dict[int, list[dict[str, str]]] = {}
    outputs: dict[int, dict[int, str]] = {}
    for direction in ops["direction"].unique():
        flows = model_graph.flows(report, direction)
        columns = (flows[column].tolist() for column in ("source", "target", "tensor", "shape"))
        for source, target, tensor, shape in zip(*columns, strict=True):
            of_source = outputs.setdefault(source, {})
            of_source.setdefault(tensor, shape)
            port = str([*of_source].index(tensor))
            at = edges.setdefault(target, [])
            edge = {"sourceNodeId": str(source), "sourceNodeOutputId": port}
            at.append({**edge, "targetNodeInputId": str(len(at))})
    nodes = []
    paths = paths_of(ops, order)
    rows = ops[[*_SHOWN]].to_dict("records")
    for path_of, number, row in zip(paths, ops.index.tolist(), rows, strict=True):
        nodes.append(_node(number, path_of, row, edges.get(number, []), outputs.get(number, {})))
    graph = {"id": name, "nodes": nodes}
    path.write_text(json.dumps({"label": name, "graphs": [graph]}), encoding="utf-8")
    for column, words in _DATA.items():
        results = {str(id): {"value": int(value)} for id, value in ops[column].items()}
        data = {name: {"results": results, "name": words, "gradient": _GRADIENT}}
        beside = path.with_name(f"{path.stem}.{column}.json")
        beside.write_text(json.dumps(data), encoding="utf-8")
    return len(nodes)


def _node(
    id: int, path: tuple[str, ...], row: Any, edges: list[dict[str, str]], outputs: dict[int, str]
) -> dict[str, Any]:
    shapes = [
        {"id": str(at), "attrs": [{"key": "tensor_shape", "value": shape}]}
        for at, shape in enumerate(outputs.values())
    ]
    return {
        "id": str(id),
        "label": path[-1],
        "namespace": "/".join(part.replace("/", ".") for part in path[:-1]),
        "attrs": [{"key": key, "value": str(row[key])} for key in _SHOWN],
        "incomingEdges": edges,
        "outputsMetadata": shapes,
    }
