"""Greedy list scheduling of F, I and W under caps on activations: the engine of the families with a split backward."""

import dataclasses

import numpy as np

_KINDS = "FIW"


@dataclasses.dataclass(frozen=True)
class Rule:
    """What a rank may do, and what it prefers. Every cap counts chunk activations.

    Attributes:
      order: actions from the most to the least preferred, kind and chunk, such as "I0 F1 I1 F0 W0 W1". Of one kind and
        chunk the lowest microbatch comes first.
      live: int [P] or one for all, the most activations a rank holds, from the start of F to the end of W.
      chunk_live: int [P, V] or None, the most of each chunk.
      ahead: int [P] or None, the most forwards of a rank, over all chunks, whose I has not run.
      due: int [P, 2 V, M] or None. Where given, a rank runs its F (of each chunk) and then its I strictly by ascending
        due, waiting for them; only W goes where there is room, as `order` says.
    """

    order: str
    live: np.ndarray | int
    chunk_live: np.ndarray | None = None
    ahead: np.ndarray | None = None
    due: np.ndarray | None = None


def fastest(num_ranks, num_chunks, num_microbatches, placement, rules):
    """Play all rules side by side, one action a rank and tick, and keep the one that ends first.

    In each tick a rank runs the most preferred action whose inputs ran in earlier ticks and that its caps allow.

    Args:
      num_ranks, num_chunks, num_microbatches: ints.
      placement: "loop" or "v".
      rules: sequence of Rule; the first of equals wins.

    Returns:
      {"F": ticks, "I": ticks, "W": ticks}, each int [S, M].

    Raises:
      ValueError: no rule ends (their caps leave no room).
    """
    stages = stage_table(num_ranks, num_chunks, placement)
    history, winner = _play(stages, num_microbatches, rules)
    ticks = {kind: np.empty((stages.size, num_microbatches), int) for kind in _KINDS}
    for rank, choices in enumerate(history[:, winner].T):
        for column in range(3 * num_chunks):
            kind, chunk = divmod(column, num_chunks)
            ticks[_KINDS[kind]][stages[rank, chunk]] = np.flatnonzero(choices == column)
    return ticks


def stage_table(num_ranks, num_chunks, placement):
    """int [P, V]: the stage that is a rank's chunk."""
    ranks, chunks = np.arange(num_ranks)[:, None], np.arange(num_chunks)
    backwards = (placement == "v") & (chunks % 2 == 1)
    return chunks * num_ranks + np.where(backwards, num_ranks - 1 - ranks, ranks)


def _play(stages, num_microbatches, rules):
    """(history, winner): history[t, k, rank] is the column (F of each chunk, I, then W) that rule k ran, or -1."""
    num_ranks, num_chunks = stages.shape
    columns, split = 3 * num_chunks, 2 * num_chunks
    end = num_ranks * columns  # a column that is always done: input of the first F and of the last I
    before, after = _neighbours(stages, end)
    score, live, chunk_live, ahead = _arrays(rules, stages, num_microbatches)
    strict, due = _due(rules, stages, num_microbatches)
    counts = np.zeros((len(rules), end + 1), np.int32)
    counts[:, end] = num_microbatches
    cells = counts[:, :end].reshape(len(rules), num_ranks, columns)  # a view: how often each column ran
    forward, backward, weight = cells[..., :num_chunks], cells[..., num_chunks:split], cells[..., split:]
    ready = np.empty(cells.shape, bool)
    rows, ranks = np.ogrid[: len(rules), :num_ranks]
    history = []
    while True:
        held, waiting = forward - weight, forward - backward
        room = (held.sum(-1) < live) & (waiting.sum(-1) < ahead)
        ready[..., :num_chunks] = (counts[:, before] > forward) & (held < chunk_live) & room[..., None]
        ready[..., num_chunks:split] = (counts[:, after] > backward) & (waiting > 0)
        ready[..., split:] = backward > weight
        if strict:
            following = np.take_along_axis(due, cells[strict, :, :split, None], -1)[..., 0]
            ready[strict, :, :split] &= following == following.min(-1, keepdims=True)
        ranked = np.where(ready, score, -1)
        choice = ranked.argmax(-1)
        runs = ranked[rows, ranks, choice] >= 0
        if not runs.any():
            raise ValueError("no rule can go on: their caps leave no room.")
        cells[rows, ranks, choice] += runs
        history.append(np.where(runs, choice, -1).astype(np.int16))
        if len(history) >= columns * num_microbatches:
            ended = (weight == num_microbatches).all((1, 2))
            if ended.any():
                return np.array(history), int(ended.argmax())


def _neighbours(stages, end):
    """Columns of the previous stage's F and of the next stage's I, both int [P, V]; `end` where there is none."""
    num_chunks = stages.shape[1]
    column = np.full(stages.size + 2, end)
    position = np.arange(stages.shape[0])[:, None] * 3 * num_chunks + np.arange(num_chunks)
    column[stages + 1] = position
    before = column[stages]
    column[stages + 1] = position + num_chunks
    return before, column[stages + 2]


def _arrays(rules, stages, num_microbatches):
    """The rules as arrays with one row a rule; what is None does not bind."""
    num_ranks, num_chunks = stages.shape
    most = num_chunks * num_microbatches + 1

    def stacked(name, shape, default):
        values = [getattr(rule, name) for rule in rules]
        return np.array([np.broadcast_to(default if v is None else v, shape) for v in values], np.int32)

    return (
        np.array([_scores(rule.order, num_chunks) for rule in rules], np.int32)[:, None],
        stacked("live", num_ranks, most),
        stacked("chunk_live", stages.shape, most),
        stacked("ahead", num_ranks, most),
    )


def _due(rules, stages, num_microbatches):
    """(numbers of the rules that have `due`, their dues int [K, P, 2 V, M + 1]: what has run M times is never due)."""
    num_ranks, num_chunks = stages.shape
    strict = [number for number, rule in enumerate(rules) if rule.due is not None]
    due = np.full((len(strict), num_ranks, 2 * num_chunks, num_microbatches + 1), np.iinfo(np.int32).max, np.int32)
    for row, number in enumerate(strict):
        due[row, ..., :-1] = rules[number].due
    return strict, due


def _scores(order, num_chunks):
    """int [3 V]: higher is preferred."""
    columns = [_KINDS.index(name[0]) * num_chunks + int(name[1:]) for name in order.split()]
    scores = np.empty(3 * num_chunks, int)
    scores[columns] = np.arange(3 * num_chunks)[::-1]
    return scores
