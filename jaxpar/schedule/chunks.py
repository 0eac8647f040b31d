"""How many chunks a rank may have, where a family does not leave it open."""

from jaxpar.errors import SettingError


def check_one_chunk(name, num_chunks, instead):
    """Refuse more than one chunk a rank; `instead` is the schedule that takes them.

    Raises:
      SettingError: the number of chunks is not one.
    """
    if num_chunks != 1:
        raise SettingError(
            f"pipeline.num_chunks={num_chunks} is not 1: {name} runs one stage a rank. "
            f"Use num_chunks=1 or pipeline.schedule={instead}."
        )


def check_two_chunks(name, num_chunks):
    """Refuse what is no V.

    Raises:
      SettingError: the number of chunks is not two.
    """
    if num_chunks != 2:
        raise SettingError(
            f"pipeline.num_chunks={num_chunks} is not 2: {name} goes down the ranks with one chunk and back up with "
            "the other. Use num_chunks=2."
        )
