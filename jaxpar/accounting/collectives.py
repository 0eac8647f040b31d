"""Which collectives a compiled program holds: over which mesh axes, inside a loop or not, how many bytes.

The program's text names devices by number, in the order of the mesh; here the numbers become axes again.
"""

import dataclasses
import math
import re

import numpy as np

from jaxpar.accounting.hlo import array_bytes, parse

KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)

_EXPLICIT = re.compile(r"replica_groups=(\{\{.*?\}\}|\{\})")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_NAMED = re.compile(r"replica_groups=@?mesh\[([^\]]*)\](?:, device_ids=\(((?:[^()]|\([^()]*\))*)\))?\s*\{([^}]*)\}")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of the program (a start and its done are one).

    Attributes:
      kind: one of KINDS.
      axes: tuple of mesh axes it runs over, in mesh order; () where every device talks to itself alone.
      in_loop: whether a loop repeats it.
      asynchronous: whether it is split into start and done.
      num_bytes: bytes of one device's result.
      groups: tuple of tuples of device numbers; a permute's are its (source, target) pairs.
      name: the instruction's.
    """

    kind: str
    axes: tuple
    in_loop: bool
    asynchronous: bool
    num_bytes: int
    groups: tuple
    name: str


def collectives(text, mesh):
    """All collectives of a compiled program's text.

    Args:
      text: `compiled.as_text()`.
      mesh: `jax.sharding.Mesh` the program was compiled for, or a mapping axis -> size in the mesh's order.

    Returns:
      List of Collective, in the text's order.

    Raises:
      ValueError: an instruction names its devices in a form that is not understood (never skipped in silence).
    """
    sizes = dict(getattr(mesh, "shape", mesh))
    instructions = parse(text)
    started = {target for i in instructions if i.opcode == "async-start" for _, target in i.calls}
    out = []
    for instruction in instructions:
        kind = instruction.opcode.removesuffix("-start")
        if kind not in KINDS:
            continue
        groups = _groups(instruction, math.prod(sizes.values()))
        asynchronous = kind != instruction.opcode or instruction.computation in started
        out.append(
            Collective(
                kind=kind,
                axes=_axes(groups, sizes),
                in_loop=instruction.in_loop,
                asynchronous=asynchronous,
                num_bytes=_result_bytes(instruction, kind),
                groups=groups,
                name=instruction.name,
            )
        )
    return out


def count_by_axes(found):
    """Counts for a report: {"tensor": {"all-reduce": {"loop": 4, "once": 1}}, "data+pipe": ...}.

    Args:
      found: list of Collective.
    """
    counts = {}
    for one in found:
        kinds = counts.setdefault("+".join(one.axes) or "none", {})
        place = kinds.setdefault(one.kind, {"loop": 0, "once": 0})
        place["loop" if one.in_loop else "once"] += 1
    return {axes: dict(sorted(counts[axes].items())) for axes in sorted(counts)}


def select(found, kind=None, axis=None, in_loop=None):
    """The collectives of this kind, that run over this axis (perhaps among others), inside a loop or not."""
    return [
        one
        for one in found
        if (kind is None or one.kind == kind)
        and (axis is None or axis in one.axes)
        and (in_loop is None or one.in_loop == in_loop)
    ]


def _result_bytes(instruction, kind):
    sizes = array_bytes(instruction.shape)
    if kind == instruction.opcode or kind == "all-reduce":
        return sum(sizes)
    # Other starts give (operand, result, contexts ...): the result of a gather is larger, that of a scatter smaller.
    return sizes[1] if len(sizes) > 1 else sum(sizes)


def _axes(groups, sizes):
    """Axes along which members of some group differ."""
    shape = tuple(sizes.values())
    varying = np.zeros(len(shape), bool)
    for group in groups:
        places = np.stack(np.unravel_index(np.asarray(group), shape), axis=-1)
        varying |= np.any(places != places[:1], axis=0)
    return tuple(axis for axis, varies in zip(sizes, varying, strict=True) if varies)


def _groups(instruction, num_devices):
    rest = instruction.rest
    if instruction.opcode.startswith("collective-permute"):
        pairs = _PAIRS.search(rest)
        if not pairs:
            raise ValueError(f"{instruction.name}: no source_target_pairs in {rest!r}")
        numbers = list(map(int, re.findall(r"\d+", pairs[1])))
        return tuple(zip(numbers[::2], numbers[1::2], strict=True))
    if match := _EXPLICIT.search(rest):
        groups = [tuple(map(int, re.findall(r"\d+", g))) for g in re.findall(r"\{([\d,\s]+)\}", match[1])]
        return tuple(groups) or (tuple(range(num_devices)),)
    if match := _IOTA.search(rest):
        return _rows(_iota(*match.groups()))
    if match := _NAMED.search(rest):
        return _rows(_named(*match.groups()))
    if "replica_groups=" not in rest:
        return (tuple(range(num_devices)),)
    raise ValueError(f"{instruction.name}: replica_groups of an unknown form in {rest!r}")


def _rows(array):
    return tuple(tuple(map(int, row)) for row in array)


def _ints(text):
    return [int(number) for number in re.findall(r"\d+", text)]


def _iota(groups, dims, order):
    """``[4,2]<=[2,4]T(1,0)``: count up in `dims`, transpose by `order`, reshape to `groups`."""
    dims = _ints(dims)
    numbers = np.arange(math.prod(dims)).reshape(dims)
    return numbers.transpose(_ints(order) if order else range(len(dims))).reshape(_ints(groups))


def _named(axes, device_ids, grouped):
    """``mesh['data'=2,'pipe'=4] {'pipe'}``; a part of an axis is ``'pipe':(1)2``: leading factor, then its size."""
    sizes = {name.strip(" '\""): int(size) for name, size in (axis.split("=") for axis in axes.split(","))}
    numbers = _device_ids(device_ids) if device_ids else np.arange(math.prod(sizes.values()))
    wanted = {}
    for part in filter(None, (part.strip() for part in grouped.split(","))):
        name, _, sub = part.partition(":")
        name = name.strip(" '\"")
        before, size = _ints(sub) if sub else (1, sizes[name])
        wanted.setdefault(name, []).append((before, size))
    shape, inside = [], []
    for name, size in sizes.items():
        done = 1
        for before, part in sorted(wanted.get(name, [])):
            shape += [before // done, part]
            inside.append(len(shape) - 1)
            done = before * part
        shape.append(size // done)
    outside = [dim for dim in range(len(shape)) if dim not in inside]
    return numbers.reshape(shape).transpose(*outside, *inside).reshape(-1, math.prod(shape[d] for d in inside))


def _device_ids(text):
    """A list ``0,2,1,3``, or ``[4,2]T(1,0)``: count up in these dims, transpose."""
    tiled = re.search(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    return _iota(str(math.prod(_ints(tiled[1]))), *tiled.groups()) if tiled else np.asarray(_ints(text))
