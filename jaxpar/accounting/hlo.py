"""Reads a compiled program's text: its instructions, their sizes, and which of them a loop repeats.

Only the little of the grammar that accounting needs, the same for CPU, GPU and TPU texts: one instruction a line,
``%name = shape opcode(operands), attribute=value, ...``, inside computations that call one another by name.
"""

import dataclasses
import functools
import re

_COMPUTATION = re.compile(r"^\s*(ENTRY\s+)?%?([\w.\-]+)\s*(\(.*)?\{\s*$")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT\s+)?%?([\w.\-]+)\s*=\s*(.*)$")
_CALLS = re.compile(
    r"\b(body|condition|to_apply|calls|true_computation|false_computation|branch_computations|called_computations)="
    r"(\{[^}]*\}|%?[\w.\-]+)"
)
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,<= ]*)\]")
_BITS = re.compile(r"[a-z]+?(\d+)")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
      name, opcode, computation: as in the text, without "%".
      shape: the result's, as in the text.
      rest: the operands and attributes, as in the text.
      calls: tuple of (attribute, computation) pairs: what the instruction runs.
      in_loop: whether a `while` repeats it, directly or through calls.
    """

    name: str
    opcode: str
    shape: str
    rest: str
    computation: str
    calls: tuple
    in_loop: bool = False

    @property
    def num_bytes(self):
        """Bytes of the result (all members of a tuple)."""
        return shape_bytes(self.shape)


def parse(text):
    """All instructions of a compiled program's text, in order, loops marked.

    Args:
      text: `compiled.as_text()`.

    Raises:
      ValueError: the text holds no computation: it is not a compiled program's.
    """
    found, computation, names = [], None, []
    for line in text.splitlines():
        if computation is None:
            header = None if line.startswith("HloModule") or " = " in line else _COMPUTATION.match(line)
            if header:
                computation = header[2]
                names.append(computation)
        elif line.strip() == "}":
            computation = None
        elif match := _INSTRUCTION.match(line):
            found.append(_instruction(match[1], match[2], computation))
    if not names:
        raise ValueError("no computation in this text: give the text of a compiled program")
    looped = _looped(found)
    return [dataclasses.replace(i, in_loop=i.computation in looped) for i in found]


def shape_bytes(shape):
    """Bytes of a shape as text, ``f32[2,3]{1,0}`` or a tuple of such (a dynamic dim counts at its bound)."""
    return sum(_array_bytes(kind, dims) for kind, dims in _ARRAY.findall(re.sub(r"\{[^}]*\}", "", shape)))


def array_bytes(shape):
    """Bytes of each array of a shape, a list."""
    return [_array_bytes(kind, dims) for kind, dims in _ARRAY.findall(re.sub(r"\{[^}]*\}", "", shape))]


def largest_copy_bytes(text):
    """Bytes of the largest array copied inside a loop, 0 where none is: a state copied every tick shows here."""
    copies = ("copy", "copy-start")
    # A copy-start's result is a tuple of target, source and context: the largest array is what is copied.
    sizes = [max(array_bytes(i.shape)) for i in parse(text) if i.in_loop and i.opcode in copies]
    return max(sizes, default=0)


def _instruction(name, tail, computation):
    shape, rest = _split_shape(tail)
    opcode, _, arguments = rest.partition("(")
    pairs = []
    for attribute, value in _CALLS.findall(arguments):
        pairs += [(attribute, target) for target in re.findall(r"[\w.\-]+", value)]
    return Instruction(name, opcode.strip(), shape, arguments, computation, tuple(pairs))


def _split_shape(tail):
    """The shape and what follows; a tuple's shape ends at its closing parenthesis, layouts hold parentheses too."""
    if not tail.startswith("("):
        shape, _, rest = tail.partition(" ")
        return shape, rest
    depth = 0
    for place, character in enumerate(tail):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return tail[: place + 1], tail[place + 1 :].strip()
    return tail, ""


def _looped(instructions):
    """Names of all computations that a `while` reaches."""
    edges, todo = {}, []
    for instruction in instructions:
        targets = [target for _, target in instruction.calls]
        edges.setdefault(instruction.computation, []).extend(targets)
        if instruction.opcode == "while":
            todo += targets
    reached = set()
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += edges.get(name, [])
    return reached


@functools.cache
def _bits(kind):
    if kind in ("pred", "token", "opaque"):
        return 8 if kind == "pred" else 0
    match = _BITS.match(kind)
    return int(match[1]) if match else 0


def _array_bytes(kind, dims):
    count = 1
    for dim in re.findall(r"\d+", dims):
        count *= int(dim)
    return (count * _bits(kind) + 7) // 8
