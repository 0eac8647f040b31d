"""Real accelerators without having one: what a step would need and communicate there, from their own compilers."""

from jaxpar.targets.compile import Step, compile_step
from jaxpar.targets.report import report
from jaxpar.targets.topology import devices

__all__ = ["Step", "compile_step", "devices", "report"]
