"""FLOPs of a traced graph, counted on equations: a loop's body counts as often as it runs.

XLA's own cost analysis takes a loop body once, which is why the count is made here. Matrix products and convolutions
count 2 a multiply-add, everything else 1 an output element; data movement counts nothing.
"""

import math

MOVES = frozenset(
    [
        "reshape",
        "transpose",
        "broadcast_in_dim",
        "squeeze",
        "expand_dims",
        "convert_element_type",
        "copy",
        "slice",
        "dynamic_slice",
        "dynamic_update_slice",
        "concatenate",
        "pad",
        "gather",
        "iota",
        "rev",
        "select_n",
        "stop_gradient",
        "random_wrap",
        "random_unwrap",
    ]
)


def count_flops(graph):
    """FLOPs (int) of a graph or a jaxpr: anything with ``equations`` or ``eqns``."""
    equations = getattr(graph, "equations", None)
    if equations is not None:
        return sum(_equation(e.name, e.params, e.inputs, e.outputs) for e in equations)
    return sum(_equation(e.primitive.name, e.params, e.invars, e.outvars) for e in graph.eqns)


def _size(v):
    return math.prod(v.aval.shape)


def _equation(name, params, inputs, outputs):
    if name == "dot_general":
        (contract, _), _ = params["dimension_numbers"]
        return 2 * _size(outputs[0]) * math.prod(inputs[0].aval.shape[d] for d in contract)
    if name == "conv_general_dilated":
        kernel, dims = inputs[1].aval.shape, params["dimension_numbers"].rhs_spec
        return 2 * _size(outputs[0]) * math.prod(kernel) // kernel[dims[0]]
    if name == "scan":
        return params["length"] * count_flops(params["jaxpr"].jaxpr)
    if name == "while":  # trips unknown: one, at least
        return count_flops(params["body_jaxpr"].jaxpr)
    if name == "cond":
        return max(count_flops(branch.jaxpr) for branch in params["branches"])
    inner = params.get("jaxpr", params.get("call_jaxpr"))
    if inner is not None:
        return count_flops(getattr(inner, "jaxpr", inner))
    return 0 if name in MOVES else sum(map(_size, outputs))
