"""How long a schedule takes: free-running ranks, or in lockstep with the executor's ticks."""

from jaxpar.errors import SettingError
from jaxpar.schedule.action import Action, inputs
from jaxpar.schedule.check import check, live_activations
from jaxpar.schedule.costs import Costs, check_costs
from jaxpar.schedule.timeline import Event, Timeline


def simulate(schedule, costs=None, mode="free", send="after_I"):
    """Run the schedule on paper.

    Args:
      schedule: Schedule; it is checked first.
      costs: Costs; None is Costs.unit(num_chunks): F = I = W = 1 for a whole rank, all else 0.
      mode: "free": each rank runs its actions in order, each as soon as its inputs have arrived.
        "lockstep": a tick in which any payload moves is a barrier. The hop starts when every rank has finished the
        tick's actions that come before it; a rank's W overlaps the waiting and the hop; it goes on when both are done.
      send: "after_I": the gradient leaves before W, as the executor does. "after_B": after the W of a B, as most
        of the literature has it.

    Returns:
      Timeline. With vocabulary "pipe", E, H and G start when all ranks have reached them and cost each rank 1/P.

    Raises:
      ScheduleError: the schedule is not valid.
      SettingError: an unknown mode or send, costs that are none, or costs for another number of stages.
    """
    for setting, value, allowed in (("mode", mode, ("free", "lockstep")), ("send", send, ("after_I", "after_B"))):
        if value not in allowed:
            raise SettingError(f"{setting}={value} is unknown: simulate has two. Use {allowed[0]} or {allowed[1]}.")
    costs = Costs.unit(schedule.num_chunks) if costs is None else check_costs(costs)
    check(schedule)
    run = _Run(schedule, costs, mode == "lockstep", send == "after_B")
    for row in schedule.ticks:
        run.tick(row)
    makespan = max((event.end for event in run.events), default=0.0)
    chunks = schedule.num_chunks
    return Timeline(
        name=schedule.name,
        num_ranks=schedule.num_ranks,
        num_chunks=chunks,
        mode=mode,
        send=send,
        makespan=makespan,
        bubble=1 - sum(run.busy) / schedule.num_ranks / makespan if makespan else 0.0,
        busy=tuple(run.busy),
        peak_live=tuple(max(trace, default=0) / chunks for trace in live_activations(schedule)),
        pending_weight_grads=tuple(_peak_pending(order) / chunks for order in schedule.actions),
        events=tuple(run.events),
    )


def _peak_pending(order):
    count = peak = 0
    for action in order:
        count += (action.kind == "I") - (action.kind == "W")
        peak = max(peak, count)
    return peak


class _Run:
    """The clocks of all ranks while the ticks go by."""

    def __init__(self, schedule, costs, lockstep, after_b):
        self.schedule, self.lockstep, self.after_b = schedule, lockstep, after_b
        self.last = schedule.num_stages - 1
        self.owners = [schedule.locate(stage)[0] for stage in range(schedule.num_stages)]
        self.cost = {kind: costs.by_stage(kind, schedule.num_stages) for kind in "EFHRIWG"}
        self.hop = float(costs.hop)
        self.clock = [0.0] * schedule.num_ranks
        self.busy = [0.0] * schedule.num_ranks
        self.ready = {}  # action -> when another rank may use its result
        self.events = []

    def tick(self, row):
        """Run one tick's actions phase by phase, the hop before the W."""
        started = {}
        collective = self.schedule.vocabulary == "pipe"
        for kind in "EFHRIG":
            cells = [
                (rank, a)
                for rank, cell in enumerate(row)
                for a in cell
                if a.kind == kind or kind == "I" and a.kind == "B"
            ]
            if cells and collective and kind in "EHG":
                self._collective(kind, cells)
                continue
            for rank, action in cells:
                start = self._run(rank, action, kind)
                if action.kind == "B":
                    started[action] = start
                    if self.after_b:
                        self._weight_gradient(rank, action, start)
                else:
                    self.events.append(Event(rank, action, start, self.clock[rank]))
        barrier = max(self.clock) + self.hop if self.lockstep and any(map(self._travels, _flat(row))) else 0.0
        for rank, cell in enumerate(row):
            for action in cell:
                if action.kind == "W":
                    start = self._run(rank, action, "W")
                    self.events.append(Event(rank, action, start, self.clock[rank]))
                elif action.kind == "B" and not self.after_b:
                    self._weight_gradient(rank, action, started[action])
        self.clock = [max(clock, barrier) for clock in self.clock]

    def _run(self, rank, action, kind):
        """Advance the rank's clock over `action` as `kind`; returns when it started."""
        start = self.clock[rank]
        for needed in inputs(action, self.last, self.schedule.vocabulary) if kind != "W" else ():
            if self.owners[needed.stage] != rank:
                start = max(start, self.ready[needed])
        cost = self.cost[kind][action.stage]
        self.clock[rank] = start + cost
        self.busy[rank] += cost
        if kind in "FI":
            self.ready[Action(action.stage, kind, action.microbatch)] = start + cost + self.hop
        return start

    def _weight_gradient(self, rank, action, start):
        """The W of a B that started at `start`; with after_b the gradient leaves only now."""
        self._run(rank, action, "W")
        if self.after_b:
            self.ready[Action(action.stage, "I", action.microbatch)] = self.clock[rank] + self.hop
        self.events.append(Event(rank, action, start, self.clock[rank]))

    def _collective(self, kind, cells):
        start = max(self.clock)
        for rank, action in cells:
            cost = self.cost[kind][action.stage] / self.schedule.num_ranks
            self.clock[rank] = start + cost
            self.busy[rank] += cost
            self.events.append(Event(rank, action, start, start + cost))

    def _travels(self, action):
        """Does the action's result hop to another rank?"""
        stage, kind, _ = action
        target = stage + 1 if kind == "F" else stage - 1 if kind in "IB" else None
        return target is not None and 0 <= target <= self.last and self.owners[target] != self.owners[stage]


def _flat(row):
    return (action for cell in row for action in cell)
