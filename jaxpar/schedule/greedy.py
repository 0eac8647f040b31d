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
      pending: int [P] or None, the most I of a rank whose W has not run.
      due: int [P, 2 V, M] or None. Where given, a rank runs its F (of each chunk) and then its I strictly by ascending
        due, waiting for them; only W goes where there is room, as `order` says.
    """

    order: str
    live: np.ndarray | int
    chunk_live: np.ndarray | None = None
    ahead: np.ndarray | None = None
    pending: np.ndarray | None = None
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
    """(history, winner): history[t, k, rank] is the column (F of each chunk, I, then W) that rule k ran, 3 V if none.

    Arrays have a row a column and then, side by side, the ranks of each rule, N = K P in all.
    """
    num_ranks, num_chunks = stages.shape
    columns, split, width = 3 * num_chunks, 2 * num_chunks, len(rules) * num_ranks
    score, columns_by_score = _scores(rules, num_chunks, num_ranks)
    live, chunk_live, ahead, pending = _caps(rules, stages, num_microbatches)
    strict, due, first_due = _due(rules, stages, num_microbatches)
    # How often each column ran; then a row for ranks that idle, and one number for what is always done.
    counts = np.zeros((columns + 1) * width + 1, np.int32)
    counts[-1] = num_microbatches
    before, after = _neighbours(stages, len(rules))
    cells = counts[: columns * width].reshape(columns, width)
    forward, backward, weight = cells[:num_chunks], cells[num_chunks:split], cells[split:]
    ready = np.empty(cells.shape, bool)
    places = np.arange(width)
    history = []
    while True:
        held, waiting, split_off = forward - weight, forward - backward, backward - weight
        room = (held.sum(0) < live) & (waiting.sum(0) < ahead)
        ready[:num_chunks] = (counts[before] > forward) & (held < chunk_live) & room
        ready[num_chunks:split] = (counts[after] > backward) & (waiting > 0) & (split_off.sum(0) < pending)
        np.greater(split_off, 0, out=ready[split:])
        if strict.size:
            following = due[first_due + cells[:split, strict]]
            ready[:split, strict] &= following == following.min(0)
        best = (ready * score).max(0)
        if not best.any():
            raise ValueError("no rule can go on: their caps leave no room.")
        choice = columns_by_score[best, places]
        counts[choice * width + places] += 1
        history.append(choice)
        if len(history) >= columns * num_microbatches:
            ended = (weight == num_microbatches).all(0).reshape(len(rules), num_ranks).all(1)
            if ended.any():
                return np.array(history).reshape(len(history), len(rules), num_ranks), int(ended.argmax())


def _neighbours(stages, num_rules):
    """Where in `counts` the previous stage's F and the next stage's I are, both int [V, N]; -1 where there is none."""
    num_ranks, num_chunks = stages.shape
    width = num_rules * num_ranks
    column = np.full((num_rules, stages.size + 2), -1)
    position = np.arange(num_rules)[:, None, None] * num_ranks + np.arange(num_ranks)[:, None]
    position = position + np.arange(num_chunks) * width  # [K, P, V]
    column[:, stages + 1] = position
    before = column[:, stages]
    column[:, stages + 1] = position + num_chunks * width
    after = column[:, stages + 2]
    return (array.reshape(width, num_chunks).T for array in (before, after))


def _caps(rules, stages, num_microbatches):
    """live int [N], chunk_live int [V, N], ahead and pending int [N]; what is None does not bind."""
    most = stages.size * num_microbatches + 1

    def stacked(name, shape):
        values = [getattr(rule, name) for rule in rules]
        return np.concatenate([np.broadcast_to(most if value is None else value, shape) for value in values])

    ranks = len(stages)
    return (
        stacked("live", ranks),
        stacked("chunk_live", stages.shape).T,
        stacked("ahead", ranks),
        stacked("pending", ranks),
    )


def _due(rules, stages, num_microbatches):
    """The rules that have `due`: their places in N, their dues, flat, and where each place's begin, int [2 V, places].

    What has run M times is never due.
    """
    num_ranks, num_chunks = stages.shape
    strict = [number for number, rule in enumerate(rules) if rule.due is not None]
    shape = (2 * num_chunks, len(strict) * num_ranks, num_microbatches + 1)
    due = np.full(shape, np.iinfo(np.int32).max, np.int32)
    for at, number in enumerate(strict):
        due[:, at * num_ranks : (at + 1) * num_ranks, :-1] = np.swapaxes(rules[number].due, 0, 1)
    places = np.array([number * num_ranks + rank for number in strict for rank in range(num_ranks)], int)
    first = np.arange(shape[0] * shape[1]).reshape(shape[:2]) * shape[2]
    return places, due.ravel(), first


def _scores(rules, num_chunks, num_ranks):
    """(score of each column, int [3 V, N], higher is preferred; column of each score, 3 V of 0, int [3 V + 1, N])."""
    columns = 3 * num_chunks
    names = [f"{kind}{chunk}" for kind in _KINDS for chunk in range(num_chunks)]
    orders = np.array([[names.index(name) for name in rule.order.split()] for rule in rules])
    columns_by_score = np.concatenate([np.full((len(rules), 1), columns), orders[:, ::-1]], axis=1)
    score = columns_by_score.argsort(axis=1)[:, :columns]
    return (
        np.repeat(score.T, num_ranks, axis=1).astype(np.int16),
        np.repeat(columns_by_score.T, num_ranks, axis=1).astype(np.int32),
    )
