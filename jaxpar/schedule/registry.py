"""Schedules by name."""

import contextlib
import difflib
import functools
import gc
import inspect

from jaxpar.errors import SettingError
from jaxpar.schedule.dualpipe_v import dualpipe_v
from jaxpar.schedule.eager import eager_1f1b
from jaxpar.schedule.fused import fused_1f1b, fused_zb
from jaxpar.schedule.gpipe import gpipe
from jaxpar.schedule.interleaved import interleaved_1f1b
from jaxpar.schedule.interleaved_zb import interleaved_zb
from jaxpar.schedule.looped_bfs import looped_bfs
from jaxpar.schedule.naive import naive
from jaxpar.schedule.one_f_one_b import one_f_one_b
from jaxpar.schedule.v_placement import v_half, v_min, zb_v
from jaxpar.schedule.zero_bubble import zb_h1, zb_h2

_BUILDERS = {
    "naive": naive,
    "gpipe": gpipe,
    "looped_bfs": looped_bfs,
    "1f1b": one_f_one_b,
    "eager_1f1b": eager_1f1b,
    "interleaved_1f1b": interleaved_1f1b,
    "fused_1f1b": fused_1f1b,
    "zb_h1": zb_h1,
    "zb_h2": zb_h2,
    "interleaved_zb": interleaved_zb,
    "fused_zb": fused_zb,
    "zb_v": zb_v,
    "v_half": v_half,
    "v_min": v_min,
    "dualpipe_v": dualpipe_v,
}
_SIZES = ("num_ranks", "num_microbatches", "num_chunks")


def names():
    """The named schedules, in the order of a tour: baseline first. build() knows "auto" too, which searches."""
    return tuple(_BUILDERS)


def chunk_counts(name, most=2):
    """The numbers of chunks a rank, from 1 to `most`, that a schedule can have.

    (1,) for most families, (2,) for those in a V, every number for the interleaved ones and the baseline.

    Args:
      name: one of names(), or "auto".
      most: int >= 2.

    Returns:
      Ascending tuple of ints, never empty.

    Raises:
      SettingError: an unknown name.
    """
    _builder(name)
    return tuple(chunks for chunks in range(1, most + 1) if name == "auto" or _takes(name, chunks))


@functools.cache
def _takes(name, num_chunks):
    try:
        build(name, 1, 1, num_chunks)
    except SettingError:
        return False
    return True


def build(name, num_ranks, num_microbatches, num_chunks=1, **options):
    """The schedule `name` for these sizes.

    Args:
      name: one of names(), or "auto": the best that search() finds, see there for its options.
      num_ranks: int >= 1, pipeline ranks (mesh.pipe).
      num_microbatches: int >= 1.
      num_chunks: int >= 1, stages a rank (virtual stages).
      **options: the family's own settings.

    Returns:
      Schedule, without vocabulary actions (see Schedule.with_vocabulary).

    Raises:
      SettingError: an unknown name or option, or sizes that the family cannot have.
    """
    builder = _builder(name)
    sizes = {"mesh.pipe": num_ranks, "pipeline.num_microbatches": num_microbatches, "pipeline.num_chunks": num_chunks}
    for setting, value in sizes.items():
        if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
            raise SettingError(f"{setting}={value} is not a positive integer: it counts things. Use 1 or more.")
    known = [p for p in inspect.signature(builder).parameters if p not in _SIZES]
    for option, value in options.items():
        if option not in known:
            raise SettingError(
                f"pipeline.{option}={value} is not an option of {name}: "
                f"it has {', '.join(known) or 'none'}. Leave it out or choose another pipeline.schedule."
            )
    with _garbage_collection_paused():
        return builder(int(num_ranks), int(num_microbatches), int(num_chunks), **options)


def _builder(name):
    known = (*_BUILDERS, "auto")
    if name not in known:
        near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.3)
        nearest = f"{near[0]} (the nearest name), or one of " if near else "one of "
        raise SettingError(
            f"pipeline.schedule={name} is unknown: no schedule has that name. Use {nearest}{', '.join(known)}."
        )
    if name == "auto":
        from jaxpar.schedule.search import auto  # not above: the search starts from the schedules named here

        return auto
    return _BUILDERS[name]


@contextlib.contextmanager
def _garbage_collection_paused():
    """Large schedules are hundreds of thousands of tuples: each collection would walk them all, and find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
