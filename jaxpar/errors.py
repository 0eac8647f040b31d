"""Errors that name a user's setting, the rule it breaks, the reason and the remedy."""


class SettingError(ValueError):
    """A setting that cannot work, found before anything compiles.

    The message has the form ``<setting>=<value> <rule>: <reason>. <remedy>.``
    """


class ScheduleError(SettingError):
    """A schedule whose table is not a valid order of its actions; the message names the first wrong cell."""


class CheckpointError(RuntimeError):
    """A checkpoint that could not be written or read; the message says which one is still good."""


class TrainingError(RuntimeError):
    """A run that must not go on; the message says why and from where it can be taken up."""
