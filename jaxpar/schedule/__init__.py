"""Pipeline schedules with NumPy alone: build, check, simulate, draw, store, lower to the executor's tables."""

from jaxpar.errors import ScheduleError
from jaxpar.schedule.action import KINDS, Action
from jaxpar.schedule.costs import Costs
from jaxpar.schedule.plan import Plan, unify
from jaxpar.schedule.registry import build, chunk_counts, names
from jaxpar.schedule.schedule import Schedule
from jaxpar.schedule.svg import render_svg
from jaxpar.schedule.timeline import Event, Timeline

from_csv = Schedule.from_csv

__all__ = [
    "KINDS",
    "Action",
    "Costs",
    "Event",
    "Plan",
    "Schedule",
    "ScheduleError",
    "Timeline",
    "build",
    "chunk_counts",
    "from_csv",
    "names",
    "render_svg",
    "unify",
]
