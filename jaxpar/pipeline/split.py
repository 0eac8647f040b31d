"""One layer function, cut into forward (F), recompute (R), input gradient (I) and weight gradient (W).

``jax.vjp`` of the layer is traced once and its equations are partitioned: what the input's cotangent needs is I, the
rest of the backward is W, what crosses from I to W is the *stash*. Two separate ``vjp`` calls would each run the inner
backward: W would cost nearly two forwards instead of one.

What crosses between the parts is kept in *pools*, named by producer and last reader: FR, FI, FW, RI, RW, IW. Values
that do not depend on x (parameters, masks, keys, and all that follows from them) are never kept, they are computed
again; so are cheap elementwise functions of values that are kept.

Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv:2401.10241, section 2; the partition is ours.
"""

import dataclasses
import functools
import warnings

import jax
import jax.numpy as jnp

from jaxpar.pipeline.flops import count_flops
from jaxpar.pipeline.graph import Graph, cut, descendants, trace

POOLS = ("FR", "FI", "FW", "RI", "RW", "IW")

# Same bytes in, same or fewer out: keep the source instead of the result.
VIEWS = frozenset(
    [
        "reshape",
        "transpose",
        "broadcast_in_dim",
        "squeeze",
        "expand_dims",
        "convert_element_type",
        "copy",
        "copy_p",
        "name",
    ]
)
# Cheaper to compute again than to keep, where the operands are kept anyway.
CHEAP = VIEWS.union(
    ["add", "sub", "mul", "div", "neg", "max", "min", "abs", "sign", "square", "integer_pow", "one_minus_square"],
    ["add_any", "select_n", "and", "or", "not", "eq", "ne", "lt", "le", "gt", "ge", "slice", "stop_gradient"],
)
MIN_WEIGHT_SHARE = 0.2  # of the backward's FLOPs


@dataclasses.dataclass(frozen=True)
class Split:
    """The four parts of a layer. Pytrees in, pytrees out; a pool is a tuple of arrays.

    Attributes:
      pools: pool name -> tuple of ShapeDtypeStructs, one layer's and one microbatch's worth.
      flops: kind -> FLOPs of one layer and one microbatch, counted on the equations.
    """

    pools: dict
    flops: dict
    _parts: dict
    _names: dict
    _treedefs: dict

    def forward(self, p, x, side, rng):
        """(y, aux, pools): pools holds FR, FI and FW."""
        out = self._run("F", p=p, x=x, side=side, rng=rng)
        y = jax.tree.unflatten(self._treedefs["x"], out["y"])
        return y, out["aux"][0], {name: tuple(out[name]) for name in ("FR", "FI", "FW")}

    def evaluate(self, p, x, side, rng):
        """(y, aux) alone: nothing is kept for a backward pass."""
        out = self._run("eval", p=p, x=x, side=side, rng=rng)
        return jax.tree.unflatten(self._treedefs["x"], out["y"]), out["aux"][0]

    def recompute(self, p, side, rng, pools):
        """Pools RI and RW from FR, FI and FW."""
        out = self._run("R", p=p, side=side, rng=rng, **pools)
        return {name: tuple(out[name]) for name in ("RI", "RW")}

    def input_grad(self, p, side, rng, ct_y, ct_aux, pools):
        """(dx, {"IW": stash}, early): early maps leaf index -> gradient of the few parameters that fall out here."""
        ct_y = jax.tree.leaves(ct_y)
        out = self._run("I", p=p, side=side, rng=rng, ct=[*ct_y, ct_aux], **pools)
        dx = jax.tree.unflatten(self._treedefs["x"], out["dx"])
        return dx, {"IW": tuple(out["IW"])}, dict(zip(self._names["early"], out["dp"], strict=True))

    def weight_grad(self, p, side, rng, ct_aux, pools):
        """Leaf index -> gradient of the parameters that I did not give already."""
        out = self._run("W", p=p, side=side, rng=rng, ct_aux=[ct_aux], **pools)
        return dict(zip(self._names["late"], out["dp"], strict=True))

    def _run(self, kind, **values):
        part = self._parts[kind]
        flat = {}
        for name, value in values.items():
            flat.update(zip(self._names["inputs"][name], jax.tree.leaves(value), strict=True))
        out, where = part.graph.run(*[flat[v] for v in part.graph.inputs]), 0
        result = {}
        for name, count in part.groups:
            result[name] = out[where : where + count]
            where += count
        return result


@dataclasses.dataclass(frozen=True)
class _Part:
    graph: Graph
    groups: tuple  # (name, number of outputs), in order


def split_layer(layer, p, x, side, rng):
    """Traces a layer and partitions its backward pass.

    Args:
      layer: (p, x, side, rng) -> x or (x, aux), aux a float scalar. Any JAX function, Flax included.
      p, x, side, rng: arrays or ShapeDtypeStructs of one layer and one microbatch. Every leaf of x must be float.

    Returns:
      Split.

    Raises:
      TypeError: x has a leaf that is not float, or the layer's output differs from its input in structure, shape or
        dtype (a pipeline passes one on as the other).
    """
    _check_boundary(layer, p, x, side, rng)
    args = (p, x, side, rng)
    sizes = [len(jax.tree.leaves(a)) for a in args]
    graph = trace(functools.partial(_forward_and_backward, layer), *args, *_cotangents(x))
    groups = _take(graph.inputs, ("p", "x", "side", "rng", "ct_y", "ct_aux"), [*sizes, sizes[1], 1])
    p_float = _float_leaves(p)
    outputs = _take(graph.outputs, ("y", "aux", "dp", "dx"), [sizes[1], 1, len(p_float), sizes[1]])
    parts, pools, early, late = _partition(graph, groups, outputs)
    inputs = {name: groups[name] for name in ("p", "x", "side", "rng", "ct_aux")}
    inputs["ct"] = [*groups["ct_y"], *groups["ct_aux"]]
    inputs.update(pools)
    names = {"inputs": inputs, "early": [p_float[k] for k in early], "late": [p_float[k] for k in late]}
    flops = {kind: count_flops(parts[kind].graph) for kind in "FRIW"}
    if early:  # some weight gradient fell out of I
        _warn_if_unsplit(parts, flops)
    return Split(
        pools={name: tuple(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in pools[name]) for name in POOLS},
        flops=flops,
        _parts=parts,
        _names=names,
        _treedefs={"x": jax.tree.structure(x)},
    )


def _check_boundary(layer, p, x, side, rng):
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                f"the layer's input x{jax.tree_util.keystr(path)} has dtype {leaf.dtype}, but what travels between "
                "stages must be float, since its gradient travels back. Put it into side."
            )
    out = jax.eval_shape(lambda *a: _with_aux(layer, *a)[0], p, x, side, rng)

    def describe(tree):
        return jax.tree.map(lambda a: f"{jnp.dtype(a.dtype).name}{list(a.shape)}", tree)

    if describe(out) != describe(x):
        raise TypeError(
            f"the layer maps {describe(x)} to {describe(out)}: each layer's output is the next one's input, so "
            "structure, shape and dtype must agree. Cast or project inside the layer."
        )


def _with_aux(layer, p, x, side, rng):
    out = layer(p, x, side, rng)
    if isinstance(out, tuple) and len(out) == 2 and jax.tree.structure(out) != jax.tree.structure(x):
        return out[0], jnp.asarray(out[1], jnp.float32)
    return out, jnp.zeros((), jnp.float32)


def _float_leaves(tree):
    return [i for i, a in enumerate(jax.tree.leaves(tree)) if jnp.issubdtype(a.dtype, jnp.floating)]


def _cotangents(x):
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), x), jax.ShapeDtypeStruct((), jnp.float32)


def _forward_and_backward(layer, p, x, side, rng, ct_y, ct_aux):
    leaves, treedef = jax.tree.flatten(p)
    floats = _float_leaves(p)

    def call(float_leaves, x):
        full = list(leaves)
        for i, leaf in zip(floats, float_leaves, strict=True):
            full[i] = leaf
        return _with_aux(layer, jax.tree.unflatten(treedef, full), x, side, rng)

    (y, aux), vjp = jax.vjp(call, [leaves[i] for i in floats], x)
    dp, dx = vjp((ct_y, ct_aux))
    return y, aux, dp, dx


def _take(flat, names, sizes):
    out, where = {}, 0
    for name, size in zip(names, sizes, strict=True):
        out[name] = list(flat[where : where + size])
        where += size
    return out


def _partition(graph, groups, outputs):
    """The parts F, R, I, W, the pools as lists of variables, and which parameters I (early) and W (late) give."""
    known = [*groups["p"], *groups["side"], *groups["rng"]]
    from_x = descendants(graph.equations, groups["x"])
    backward = descendants(graph.equations, [*groups["ct_y"], *groups["ct_aux"]])
    again = {v for eqn in graph.equations if eqn.recomputed for v in eqn.outputs if v in from_x} - backward
    again = descendants(graph.equations, again) - backward
    forward = from_x - again - backward

    def makes(outputs, region):
        return {v for eqn in cut(graph, outputs, graph.inputs).equations for v in eqn.outputs} & region

    in_i = makes(outputs["dx"], backward)
    early = [k for k, v in enumerate(outputs["dp"]) if v in in_i]
    late = [k for k, v in enumerate(outputs["dp"]) if v not in in_i]
    dp_late = [outputs["dp"][k] for k in late]
    in_w = makes(dp_late, backward) - in_i

    crossing = in_i | set(groups["ct_y"])
    stash = _thin(graph, _frontier(graph, in_w, dp_late, crossing), crossing, VIEWS)
    ends = [*outputs["dx"], *dp_late]
    recomputed = _frontier(graph, in_i | in_w, ends, again)
    kept = _frontier(graph, in_i | in_w | makes(recomputed, again), ends, forward)
    kept = _thin(graph, kept, forward, CHEAP)
    recomputed = _thin(graph, recomputed, again, CHEAP, also=kept, sources=VIEWS)

    aux, saved = groups["ct_aux"], [*kept, *recomputed]
    w = cut(graph, dp_late, [*known, *aux, *saved, *stash])
    i_out = [*outputs["dx"], *stash, *(outputs["dp"][k] for k in early)]
    i = cut(graph, i_out, [*known, *groups["ct_y"], *aux, *saved])
    pools = _sort_into_pools(kept, recomputed, stash, i, w)
    r = cut(graph, [*pools["RI"], *pools["RW"]], [*known, *kept])
    y = [*outputs["y"], *outputs["aux"]]
    start = [*known, *groups["x"]]
    prints = [e for e in graph.equations if e.effects and not e.recomputed and not set(e.variables()) & backward]
    f = cut(graph, [*y, *pools["FR"], *pools["FI"], *pools["FW"]], start, also=prints)
    num = {name: len(pools[name]) for name in POOLS}
    first = (("y", len(outputs["y"])), ("aux", 1))
    parts = {
        "F": _Part(f, (*first, *((name, num[name]) for name in ("FR", "FI", "FW")))),
        "eval": _Part(cut(graph, y, start, also=prints), first),
        "R": _Part(r, (("RI", num["RI"]), ("RW", num["RW"]))),
        "I": _Part(i, (("dx", len(outputs["dx"])), ("IW", num["IW"]), ("dp", len(early)))),
        "W": _Part(w, (("dp", len(late)),)),
    }
    return parts, pools, early, late


def _frontier(graph, inside, outputs, wanted):
    """Members of ``wanted`` that are read by the equations making ``inside``, or are outputs, in graph order."""
    found = {}
    for eqn in graph.equations:
        if any(v in inside for v in eqn.outputs):
            found.update((v, None) for v in eqn.variables() if v in wanted and v not in inside)
    found.update((v, None) for v in outputs if v in wanted)
    return list(found)


def _thin(graph, keep, wanted, cheap, also=(), sources=None):
    """Drops from ``keep`` what follows cheaply from the rest, and keeps a view's source in its place.

    Args:
      wanted: the variables on this side of the graph, which are lost unless kept; what is neither here nor in ``also``
        can be had again from parameters and side inputs.
      cheap: names of the primitives that may be run again.
      also: variables kept in another pool.
      sources: names of the primitives whose source may be kept in place of the result; default: ``cheap``.
    """
    producers = graph.producers()
    order = {v: n for n, eqn in enumerate(graph.equations) for v in eqn.outputs}
    through = cheap if sources is None else sources
    kept = dict.fromkeys(_source(v, producers, wanted, through) for v in keep)
    also = set(also)

    def follows(v):
        eqn = producers.get(v)
        return eqn is not None and eqn.name in cheap and all(at_hand(u) for u in eqn.variables())

    def at_hand(v):
        lost = v in wanted or (v in producers and producers[v].recomputed)
        return v in kept or v in also or not lost or follows(v)

    for v in sorted(kept, key=lambda v: order.get(v, -1), reverse=True):
        if follows(v):
            del kept[v]
    return sorted(kept, key=lambda v: order.get(v, -1))


def _source(v, producers, wanted, through):
    """Up through the primitives ``through`` to the smallest single value that v follows from."""
    while v in producers and producers[v].name in through:
        lost = {u for u in producers[v].variables() if u in wanted}
        if len(lost) != 1 or next(iter(lost)).num_bytes > v.num_bytes:
            break
        (v,) = lost
    return v


def _sort_into_pools(kept, recomputed, stash, i, w):
    """Each kept value goes to the pool of its last reader."""
    by_w, by_i = {*w.inputs, *w.outputs}, {*i.inputs, *i.outputs}
    pools = {name: [] for name in POOLS}
    for v in kept:
        pools["FW" if v in by_w else "FI" if v in by_i else "FR"].append(v)
    for v in recomputed:
        pools["RW" if v in by_w else "RI"].append(v)
    pools["IW"] = list(stash)
    return pools


def _warn_if_unsplit(parts, flops):
    backward = flops["I"] + flops["W"]
    if not backward or flops["W"] >= MIN_WEIGHT_SHARE * backward:
        return
    whole = max(parts["I"].graph.equations, key=lambda eqn: count_flops(Graph((), (), (eqn,))))
    warnings.warn(
        f"W has {flops['W'] / backward:.0%} of the backward's FLOPs (under {MIN_WEIGHT_SHARE:.0%}): the equation "
        f"'{whole.name}' cannot be cut and went to I whole, so schedules that move W gain little. Write it so that its "
        "parameters enter outside of loops and kernels.",
        stacklevel=3,
    )
