"""What can be read off a traced train step, whatever was asked for."""

import re
from collections import Counter
from collections.abc import Iterator

import tensorflow as tf

from myxtts.models.layers.attention import ATTENTION_SCOPES
from myxtts.models.layers.recomputation import RECOMPUTED

_RECOMPUTED = re.compile(rf"(?:^|/){RECOMPUTED}((?:conditioning_)?block_\d+)(?:_\d+)?/")
_ATTENTION = re.compile(rf"^(?:replica_\d+/)?(.*?)({'|'.join(ATTENTION_SCOPES.values())})(?:_\d+)?/")


def nodes(graph: tf.Graph) -> Iterator:
    """Nodes of a graph and of the functions it calls."""
    definition = graph.as_graph_def()
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def recomputed_blocks(graph: tf.Graph) -> set[str]:
    """Names of the blocks that have operations which the backward pass makes again."""
    return {found.group(1) for node in nodes(graph) if (found := _RECOMPUTED.search(node.name))}


def attention_forms(graph: tf.Graph) -> Counter:
    """`{form: number of layers}` of the attention layers in a graph's forward pass."""
    forward = (node.name for node in nodes(graph) if "gradient" not in node.name)
    layers = {found.groups() for name in forward if (found := _ATTENTION.match(name))}
    names = {scope: form for form, scope in ATTENTION_SCOPES.items()}
    return Counter(names[scope] for _, scope in layers)
