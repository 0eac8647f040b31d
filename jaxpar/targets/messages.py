"""Whether a compiled program's messages leave the device free for other work.

The text is in the order in which the instructions run. A permute that is split into start and done is asynchronous; it
hides behind work only where the compiler found some to put in between.
"""

import re

from jaxpar.accounting.hlo import parse

_START = "collective-permute-start"
_WORK = frozenset(["while", "fusion", "dot", "convolution", "custom-call", "conditional", "call"])
# The GPU compiler's note that nothing runs between the start and the done, whichever way it spells them.
_WAITS = re.compile(r'%?([\w.\-]+) = .*"is_sync":true')


def asynchronous(text, permutes):
    """Those of the permutes that are split, and not marked as waiting all the same.

    Args:
      text: `compiled.as_text()`.
      permutes: list of jaxpar.accounting.collectives.Collective.
    """
    waiting = set(_WAITS.findall(text))
    return [one for one in permutes if one.asynchronous and one.name not in waiting]


def overlapped(text, permutes):
    """Those of the permutes with work between their start and their done."""
    hidden, open_starts = set(), {}
    for instruction in parse(text):
        flying = open_starts.setdefault(instruction.computation, {})
        if instruction.opcode == _START:
            flying[instruction.name] = False
        elif instruction.opcode == "collective-permute-done":
            start = re.search(r"[\w.\-]+", instruction.rest)[0]
            if flying.pop(start, False):
                hidden.add(start)
        elif instruction.opcode in _WORK:
            flying.update(dict.fromkeys(flying, True))
    return [one for one in permutes if one.name in hidden]
