"""Errors that name a user's setting, the rule it breaks, the reason and the remedy."""


class SettingError(ValueError):
    """A setting that cannot work, found before anything compiles.

    The message has the form ``<setting>=<value> <rule>: <reason>. <remedy>.``
    """


class ScheduleError(SettingError):
    """A schedule whose table is not a valid order of its actions; the message names the first wrong cell."""
