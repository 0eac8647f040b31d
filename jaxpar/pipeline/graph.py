"""A traced function as a flat list of equations, so that its backward pass can be cut in two.

``jax.make_jaxpr`` nests: jit, checkpoint, custom rules. Here they are inlined, variables renamed apart, and equal
equations merged. An equation that came out of a differentiated ``checkpoint`` remembers it: that is what recomputation
is made of. Loops, conditionals and kernels stay whole.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np

from jaxpar import compat

# Primitive -> the parameter that holds its body.
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}
REMAT = ("remat", "remat2", "checkpoint")


class Var:
    """One value of the graph; compared by identity."""

    __slots__ = ("aval",)

    def __init__(self, aval):
        self.aval = aval

    @property
    def num_bytes(self):
        """Bytes of the value; 0 for what is no plain array (typed random keys)."""
        dtype = self.aval.dtype
        size = int(np.prod(self.aval.shape, dtype=np.int64))
        return 0 if jax.dtypes.issubdtype(dtype, jax.dtypes.extended) else size * np.dtype(dtype).itemsize


@dataclasses.dataclass(frozen=True, eq=False)
class Constant:
    """A literal, or an array that the traced function closed over."""

    value: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Equation:
    """``outputs = primitive(*inputs, **params)``; ``recomputed`` when it came from a differentiated checkpoint."""

    primitive: Any
    inputs: tuple
    outputs: tuple
    params: dict
    recomputed: bool
    effects: bool

    @property
    def name(self):
        """The primitive's name."""
        return self.primitive.name

    def variables(self):
        """The inputs that are no constants."""
        return [v for v in self.inputs if isinstance(v, Var)]


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """A function: ``inputs`` -> ``outputs`` through ``equations``, in an order that can be run."""

    inputs: tuple
    outputs: tuple
    equations: tuple

    def run(self, *values):
        """Evaluates (or traces) the graph on values for its inputs; the outputs, in order."""
        env = dict(zip(self.inputs, values, strict=True))

        def read(v):
            return v.value if isinstance(v, Constant) else env[v]

        for eqn in self.equations:
            out = compat.bind(eqn.primitive, eqn.params, map(read, eqn.inputs))
            env.update(zip(eqn.outputs, out if eqn.primitive.multiple_results else [out], strict=True))
        return [read(v) for v in self.outputs]

    def producers(self):
        """Var -> the equation that makes it."""
        return {v: eqn for eqn in self.equations for v in eqn.outputs}


def trace(fn, *args):
    """Traces ``fn(*args)`` (pytrees of arrays or ShapeDtypeStructs) to a flat graph.

    Returns:
      Graph; its inputs and outputs are the pytrees' leaves in order.
    """
    closed = jax.make_jaxpr(fn)(*args)
    jaxpr = closed.jaxpr
    inputs = tuple(Var(v.aval) for v in jaxpr.invars)
    builder = _Flattener()
    env = dict(zip(jaxpr.invars, inputs, strict=True))
    env.update((v, Constant(c)) for v, c in zip(jaxpr.constvars, closed.consts, strict=True))
    outputs = builder.inline(jaxpr, env, recomputed=False)
    return Graph(inputs, tuple(outputs), tuple(builder.equations))


class _Flattener:
    """Collects equations; merges one that is already there."""

    def __init__(self):
        self.equations = []
        self._seen = {}

    def inline(self, jaxpr, env, recomputed):
        """Appends the body's equations under ``env`` (its variables -> ours); returns its outputs."""

        def read(v):
            return Constant(v.val) if isinstance(v, jex.Literal) else env[v]

        for eqn in jaxpr.eqns:
            inputs = tuple(read(v) for v in eqn.invars)
            body = eqn.params.get(CALLS.get(eqn.primitive.name))
            if body is None:
                outputs = self._append(eqn, inputs, recomputed)
            else:
                inner, consts = (body.jaxpr, body.consts) if hasattr(body, "consts") else (body, ())
                sub = dict(zip(inner.invars, inputs, strict=True))
                sub.update((v, Constant(c)) for v, c in zip(inner.constvars, consts, strict=True))
                again = eqn.primitive.name in REMAT and eqn.params.get("differentiated", False)
                outputs = self.inline(inner, sub, recomputed or again)
            env.update(zip(eqn.outvars, outputs, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _append(self, eqn, inputs, recomputed):
        key = None if eqn.effects else _key(eqn, inputs, recomputed)
        if key is not None and key in self._seen:
            return self._seen[key]
        outputs = tuple(Var(v.aval) for v in eqn.outvars)
        self.equations.append(Equation(eqn.primitive, inputs, outputs, eqn.params, recomputed, bool(eqn.effects)))
        if key is not None:
            self._seen[key] = outputs
        return outputs


def _key(eqn, inputs, recomputed):
    """Equal keys, equal values; None where that cannot be told."""

    def operand(v):
        if isinstance(v, Var):
            return v
        scalar = np.ndim(v.value) == 0 and isinstance(v.value, (int, float, bool, np.generic))
        return (type(v.value), str(getattr(v.value, "dtype", "")), v.value) if scalar else id(v.value)

    params = tuple(sorted(eqn.params.items(), key=lambda item: item[0]))
    key = (eqn.primitive, recomputed, tuple(map(operand, inputs)), params)
    try:
        hash(key)
    except TypeError:
        return None
    return key


def cut(graph, outputs, available, also=()):
    """The part of ``graph`` that computes ``outputs`` (and runs the equations ``also``) from values in ``available``.

    Returns:
      A Graph whose inputs are those members of ``available`` that it reads, in the given order.
    """
    available = list(available)
    stop, producers = set(available), graph.producers()
    wanted, used = set(also), set()
    stack = [v for v in outputs if isinstance(v, Var)] + [v for eqn in also for v in eqn.variables()]
    while stack:
        v = stack.pop()
        if v in stop:
            used.add(v)
            continue
        eqn = producers[v]
        if eqn not in wanted:
            wanted.add(eqn)
            stack.extend(eqn.variables())
    equations = tuple(eqn for eqn in graph.equations if eqn in wanted)
    return Graph(tuple(v for v in available if v in used), tuple(outputs), equations)


def descendants(equations: Iterable[Equation], roots):
    """All variables that depend on any of ``roots``, the roots included."""
    reached = set(roots)
    for eqn in equations:
        if any(v in reached for v in eqn.variables()):
            reached.update(eqn.outputs)
    return reached
