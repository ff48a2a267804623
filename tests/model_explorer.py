"""What ai-edge-model-explorer 0.1.34 reads: its graph_builder.py and node_data_builder.py.

The package brings an adapter of 128 MB for other formats, so that tests do without it. Only what
we write is here: other fields are refused.
"""

from __future__ import annotations

from msgspec import Struct


class KeyValue(Struct, forbid_unknown_fields=True):
    key: str
    value: str


class MetadataItem(Struct, forbid_unknown_fields=True):
    id: str
    attrs: list[KeyValue]


class IncomingEdge(Struct, forbid_unknown_fields=True):
    sourceNodeId: str
    sourceNodeOutputId: str
    targetNodeInputId: str


class GraphNode(Struct, forbid_unknown_fields=True):
    id: str
    label: str
    namespace: str
    attrs: list[KeyValue]
    incomingEdges: list[IncomingEdge]
    outputsMetadata: list[MetadataItem]


class Graph(Struct, forbid_unknown_fields=True):
    id: str
    nodes: list[GraphNode]


class GraphCollection(Struct, forbid_unknown_fields=True):
    label: str
    graphs: list[Graph]


class NodeDataResult(Struct, forbid_unknown_fields=True):
    value: int | float


class GradientItem(Struct, forbid_unknown_fields=True):
    stop: int | float
    bgColor: str


class GraphNodeData(Struct, forbid_unknown_fields=True):
    results: dict[str, NodeDataResult]
    name: str
    gradient: list[GradientItem]
