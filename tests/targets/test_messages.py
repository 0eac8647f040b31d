"""Which permutes of a compiled program are asynchronous, and which have work to hide behind."""

import pytest

from jaxpar.accounting.collectives import collectives
from jaxpar.targets.messages import asynchronous, overlapped

PAIRS = "source_target_pairs={{0,1},{1,0}}"
START = f"collective-permute-start(%a), {PAIRS}"
DONE = "f32[8]{0} collective-permute-done(%s)"
SPLIT = f"%s = (f32[8]{{0}}, f32[8]{{0}}) {START}"
WORK = "%w = f32[8]{0} fusion(%b), kind=kLoop, calls=%f"
NO_WORK = "%w = f32[8]{0} bitcast(%b)"


@pytest.mark.parametrize(
    ("lines", "is_asynchronous", "is_overlapped"),
    [
        ([f"%s = f32[8]{{0}} collective-permute(%a), {PAIRS}", WORK], False, False),
        ([SPLIT, WORK, f"%d = {DONE}"], True, True),
        ([SPLIT, NO_WORK, f"%d = {DONE}"], True, False),
        ([WORK, SPLIT, f"%d = {DONE}", WORK], True, False),
        ([SPLIT + ', backend_config={"is_sync":true}', f"%d = {DONE}"], False, False),
    ],
)
def test_permutes(lines, is_asynchronous, is_overlapped):
    text = "HloModule m\n\nENTRY %main (a: f32[8]) -> f32[8] {\n  " + "\n  ".join(lines) + "\n}\n"
    found = collectives(text, {"pipe": 2})
    assert len(found) == 1
    assert bool(asynchronous(text, found)) == is_asynchronous
    assert bool(overlapped(text, found)) == is_overlapped
