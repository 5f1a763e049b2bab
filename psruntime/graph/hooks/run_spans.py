"""The operations that TensorFlow ran for a step, by its step statistics: spans by task and kind."""

from __future__ import annotations

import re
from collections.abc import Mapping

from psruntime.graph.base.types import Graph, Proto
from psruntime.tracing.spans import APPLY, MUTEX, OP, READ, TRANSFER, Span

LEAST_S = 20e-6  # shorter operations are left out
ALL_KEPT = (APPLY, MUTEX)  # but for these
_DEVICE = re.compile(r"/job:(\w+)/replica:\d+/task:(\d+)/")
_LABEL = re.compile(r"= (\w+)\(")
_KINDS = (
    (MUTEX, re.compile(r"MutexLock")),
    (APPLY, re.compile(r"Apply|Scatter|Assign")),
    (READ, re.compile(r"ReadVariable|ResourceGather")),
    (TRANSFER, re.compile(r"_?(Host)?(Send|Recv)")),
)


def run_spans(
    stats: Proto, worker: int, graph: Graph, shift_s: float, shifts: Mapping[str, float]
) -> tuple[list[Span], int]:
    """(spans, how many were too short to keep) of one run.

    stats: a StepStats, each device's by the clock of its machine.  shift_s: to be added to the times of this worker.
    shifts: task -> the same for a ps.
    """
    spans, left_out = [], 0
    for device in stats.dev_stats:
        named = _DEVICE.search(device.device)
        if not named:
            continue
        task = f"{named[1]} {named[2]}"
        to_clock_s = shifts.get(task, shift_s)
        for node in device.node_stats:
            type_ = _type_of(node, graph) or node.node_name  # as RecvTensor, which is none of a graph
            kind = next((kind for kind, pattern in _KINDS if pattern.search(type_)), OP)
            begin_s = node.all_start_micros / 1e6 + to_clock_s
            length_s = node.all_end_rel_micros / 1e6
            if length_s < LEAST_S and kind not in ALL_KEPT:
                left_out += 1
                continue
            spans.append(Span(task, worker, kind, node.node_name, begin_s, begin_s + length_s, {"type": type_}))
    return spans, left_out


def _type_of(node: Proto, graph: Graph) -> str:
    """The type of its operation.  TensorFlow adds some operations to the graph, and has their types in the label."""
    if found := _LABEL.search(node.timeline_label):
        return found[1]
    try:
        return str(graph.get_operation_by_name(node.node_name).type)
    except (KeyError, ValueError):
        return ""
