"""The curve is drawn whatever there is to draw."""

import io

import matplotlib.image
import pytest

from jaxpar.figures import loss_png


@pytest.mark.parametrize(
    ("losses", "held_out", "baseline"),
    [([], [], None), ([(1, 5.0)], [], 2.6), ([(1, 5.0), (2, 4.0)], [(2, 4.2)], 2.6), ([(1, float("nan"))], [], None)],
)
def test_a_picture_comes_out(losses, held_out, baseline):
    picture = matplotlib.image.imread(io.BytesIO(loss_png(losses, held_out, baseline, "title")), format="png")
    assert picture.shape[0] > 300 and picture.shape[1] > 500
    assert picture[..., :3].min() < 0.5, "something is drawn"
