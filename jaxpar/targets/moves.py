"""Data that a compiled loop moves without computing: copies that no schedule asked for.

A buffer that two parts of the loop want in different layouts is transposed whole, all its slots, every tick. That does
not show as `copy` alone: the compilers fuse it, and split it into start and done.
"""

import dataclasses
import re

from jaxpar.accounting.hlo import array_bytes, parse

_COPIES = frozenset(["copy", "copy-start", "transpose"])
_PASSIVE = frozenset(["parameter", "constant", "bitcast", "reshape", "tuple", "get-tuple-element"])
_LOADS = frozenset(["dynamic-slice", "slice"])
_ARRAY = re.compile(r"[a-z]\w*\[([\d,]*)\]")
_ON_CHIP = "S(1)"  # a memory space: a copy to or from it is a prefetch into fast memory, not a second copy


@dataclasses.dataclass(frozen=True)
class Move:
    """An instruction that only moves.

    Attributes:
      kind: "copy": a whole array, to itself or another layout; "load": a slice of it.
      num_bytes: of the largest result.
      name, shape: the instruction's.
      source: where it comes from in the program ("while/body/I/while/..."), "" where the compiler does not say.
    """

    kind: str
    num_bytes: int
    name: str
    shape: str
    source: str

    def __str__(self):
        return f"{self.num_bytes / 1e6:.1f} MB {self.shape} {self.source}".strip()


def moves(text, in_loop=True):
    """All moves of a compiled program, largest first.

    Args:
      text: `compiled.as_text()`.
      in_loop: those that a loop repeats, or those that no loop does.
    """
    instructions = parse(text)
    inside = {target for i in instructions if i.opcode == "fusion" for _, target in i.calls}
    bodies = {}
    for i in instructions:
        if i.computation in inside:
            bodies.setdefault(i.computation, set()).add(i.opcode)
    found = []
    for i in instructions:
        if i.in_loop != in_loop or i.computation in inside:
            continue
        kind = _kind(i, bodies)
        if kind:
            largest = max(array_bytes(i.shape), default=0)
            found.append(Move(kind, largest, i.name, i.shape, _source(i.rest)))
    return sorted(found, key=lambda move: -move.num_bytes)


def largest(moves, kind):
    """Bytes of the largest move of a kind, 0 where there is none."""
    return max((move.num_bytes for move in moves if move.kind == kind), default=0)


def of_buffers(moves, shapes):
    """Those of the copies that copy a whole buffer: an array of its dims, in any order.

    Args:
      moves: list of Move.
      shapes: the buffers' shapes on one device.
    """
    wanted = {_dims(shape) for shape in shapes}
    return [m for m in moves if m.kind == "copy" and wanted & {_dims(s) for s in _ARRAY.findall(m.shape)}]


def _dims(shape):
    """Sorted dims but those of size 1; a shape as a tuple, or as the text between the brackets."""
    sizes = map(int, re.findall(r"\d+", shape)) if isinstance(shape, str) else shape
    return tuple(sorted(size for size in sizes if size > 1))


def _kind(instruction, bodies):
    if _ON_CHIP in instruction.shape:
        return None
    if instruction.opcode != "fusion":
        return "copy" if instruction.opcode in _COPIES else "load" if instruction.opcode in _LOADS else None
    active = set().union(*(bodies.get(target, set()) for _, target in instruction.calls)) - _PASSIVE
    if not active or not active <= _COPIES | _LOADS:
        return None
    return "load" if active & _LOADS else "copy"


def _source(rest):
    _, found, after = rest.partition('op_name="')
    return after.partition('"')[0] if found else ""
