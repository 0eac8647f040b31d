"""Actions print and parse back."""

import pytest

from jaxpar.schedule import KINDS, Action


@pytest.mark.parametrize("kind", KINDS)
def test_parse_is_the_inverse_of_str(kind):
    for stage in (0, 7, 12):
        for microbatch in (0, 9, 130):
            action = Action(stage, kind, microbatch)
            assert str(action) == f"{stage}{kind}{microbatch}"
            assert Action.parse(str(action)) == action


@pytest.mark.parametrize("text", ["", "F0", "2F", "2X0", "2F0x", "-1F0", "2f0", "2F0;1F0"])
def test_what_is_not_an_action_is_refused(text):
    with pytest.raises(ValueError, match="is not an action"):
        Action.parse(text)
