"""loss.png, the curve of a run. (schedule.svg is the schedule room's own drawing.)"""

import io
import math

import numpy as np

from jaxpar.metrics import bits_per_byte

# Okabe and Ito's palette, told apart with any colour vision.
_TRAIN, _HELD_OUT, _BASELINE = "#0072b2", "#d55e00", "#4d4d4d"


def loss_png(losses, held_out, baseline=None, title="", bytes_per_token=1.0):
    """The loss over steps, in bits per byte, or in nats per token where tokens stand for no text.

    Args:
      losses: list of (step, nats a token).
      held_out: list of (step, nats a token), drawn as points.
      baseline: bits per byte of a simpler model, drawn as a line; None draws none.
      title: str.
      bytes_per_token: of the text; None where there is none.

    Returns:
      bytes of a PNG.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to load, and needed once, at the end
    from matplotlib.figure import Figure

    def unit(nats):
        return nats if bytes_per_token is None else bits_per_byte(nats, bytes_per_token)

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.plot([step for step, _ in losses], [unit(nats) for _, nats in losses], color=_TRAIN, lw=1, label="training")
    if held_out:
        bits = [unit(nats) for _, nats in held_out]
        axes.plot(
            [step for step, _ in held_out], bits, "o-", color=_HELD_OUT, label=f"held out ({bits[-1]:.2f} at the end)"
        )
    if baseline is not None:
        axes.axhline(baseline, color=_BASELINE, ls="--", lw=1, label=f"order-2 byte model ({baseline:.2f})")
    bits = [unit(nats) for _, nats in losses if math.isfinite(nats)]
    if bits:
        # The first steps are far above the rest, which is what one looks at.
        ends = [unit(nats) for _, nats in held_out if math.isfinite(nats)]
        axes.set_ylim(top=1.1 * max([np.quantile(bits, 0.98), baseline or 0.0, *ends]))
    axes.set(xlabel="step", ylabel="nats per token" if bytes_per_token is None else "bits per byte", title=title)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    picture = io.BytesIO()
    FigureCanvasAgg(figure).print_png(picture)
    return picture.getvalue()
