"""A tiny interpreter of Plans with symbolic payloads: what the executor does, without arrays.

A payload is a tuple that says what it is: ("x", s, m) is the input of stage s, or of the head after the last stage;
("g", s, m) the gradient for stage s's output, or for the embedding's where s is -1; ("F", s, m) what F leaves behind.
"""

from jaxpar.schedule.messages import CHANNELS

GARBAGE = ("garbage",)


class Rank:
    """One rank's buffers; the spare slot is the last of act and grad."""

    def __init__(self, plan):
        spare = {"act": 1, "grad": 1}
        self.slots = {name: [GARBAGE] * (n + spare.get(name, 0)) for name, n in plan.num_slots.items()}

    def read(self, buffer, slot, expected):
        assert self.slots[buffer][slot] == expected, f"{buffer}[{slot}] is {self.slots[buffer][slot]}, not {expected}"

    def write(self, buffer, slot, value):
        self.slots[buffer][slot] = value


def interpret(plan, schedule, recompute):
    """Run `plan` and check every read; returns how often each (rank, kind, stage, microbatch) ran."""
    ranks = [Rank(plan) for _ in range(plan.num_ranks)]
    ran = {}
    last = plan.num_ranks * plan.num_chunks - 1
    for t in range(len(plan.table)):
        sent = [{"act": GARBAGE, "grad": GARBAGE} for _ in ranks]
        cells = [{name: int(plan.table[t, r, c]) for name, c in plan.columns.items()} for r in range(plan.num_ranks)]
        for kind in "EFHRIG":
            for r, cell in enumerate(cells):
                if cell[f"{kind}.run"]:
                    _run(kind, r, cell, ranks[r], sent[r], plan, schedule, recompute, ran, last)
        _hop(plan, t, cells, ranks, sent)
        for r, cell in enumerate(cells):
            if cell["W.run"]:
                _run("W", r, cell, ranks[r], sent[r], plan, schedule, recompute, ran, last)
    return ran


def _hop(plan, t, cells, ranks, sent):
    arrived = [set() for _ in ranks]
    for c, channel in enumerate(CHANNELS):
        buffer = channel[:-2]
        step = 1 if channel.endswith("+1") else -1
        received = {}
        for source, target in plan.patterns[c][plan.pattern[t, c]]:
            assert target == (source + step) % plan.num_ranks
            assert target not in received, "one source for a target"
            received[target] = sent[source][buffer]
        for r, cell in enumerate(cells):
            slot = cell[f"{channel}.recv"]
            spare = plan.num_slots[buffer]
            assert slot == spare or r in received, "a slot waits for a payload that nobody sends"
            assert slot == spare or (buffer, slot) not in arrived[r], "two payloads for one slot"
            arrived[r].add((buffer, slot))
            if r in received:
                ranks[r].write(buffer, slot, received[r])


def _run(kind, r, cell, rank, sent, plan, schedule, recompute, ran, last):
    m = cell[f"{kind}.microbatch"]
    stage = {"E": 0, "H": last, "G": 0}.get(kind)
    if stage is None:
        stage = schedule.stage_of(r, cell[f"{kind}.chunk"])
    ran[r, kind, stage, m] = ran.get((r, kind, stage, m), 0) + 1
    vocabulary = plan.vocabulary is not None
    owner = schedule.locate(stage)[0] == r
    act, grad = plan.num_slots["act"], plan.num_slots["grad"]
    if kind == "E":
        rank.write("act", cell["E.out"], ("x", 0, m) if owner else GARBAGE)
        assert owner or cell["E.out"] == act
    if kind == "F":
        if stage or vocabulary:
            rank.read("act", cell["F.in"], ("x", stage, m))
        sent["act"] = ("x", stage + 1, m)
        rank.write("act", cell["F.out"], sent["act"])
        _write_pools(rank, cell, "F", ("FR", "FI", "FW") if recompute else ("FI", "FW"), stage, m)
    if kind == "H" and owner:
        rank.read("act", cell["H.in"], ("x", last + 1, m))
        rank.write("grad", cell["H.out"], ("g", last, m))
    if kind == "H" and not owner:
        assert (cell["H.in"], cell["H.out"]) == (act, grad)
    if kind == "R":
        rank.read("FR", cell["R.FR"], ("F", stage, m))
        _write_pools(rank, cell, "R", ("RI", "RW"), stage, m)
    if kind == "I":
        if stage < last or vocabulary:
            rank.read("grad", cell["I.in"], ("g", stage, m))
        rank.read("FI", cell["I.FI"], ("F", stage, m))
        if recompute:
            rank.read("RI", cell["I.RI"], ("R", stage, m))
        sent["grad"] = ("g", stage - 1, m)
        rank.write("grad", cell["I.out"], sent["grad"])
        _write_pools(rank, cell, "I", ("IW",), stage, m)
    if kind == "W":
        for pool in ("FW", "RW", "IW") if recompute else ("FW", "IW"):
            rank.read(pool, cell[f"W.{pool}"], (pool[0], stage, m))
    if kind == "G" and owner:
        rank.read("grad", cell["G.in"], ("g", -1, m))
    if kind == "G" and not owner:
        assert cell["G.in"] == grad


def _write_pools(rank, cell, kind, pools, stage, m):
    for pool in pools:
        rank.write(pool, cell[f"{kind}.{pool}"], (kind, stage, m))
