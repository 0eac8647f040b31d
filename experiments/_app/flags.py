"""The command line: `--config=FILE [--config.a.b=value ...] [--workdir=DIR]`, every fault as a SettingError.

A run of several processes also takes `--coordinator=HOST:PORT --num_processes=N --process_id=I`, where nothing that
started it says so (see jaxpar/distributed.py).

The file's settings are completed with the defaults first, so that every setting there is can be overridden, and every
name is looked up before ml_collections sees it, so that a misspelt one is named with its nearest.
"""

import functools
import os
import re
import runpy
import traceback
from collections.abc import Callable
from typing import NamedTuple

from absl import flags
from ml_collections import ConfigDict, config_flags

from jaxpar import config as configs
from jaxpar.config import Config
from jaxpar.distributed import Processes, find
from jaxpar.errors import SettingError

_FLAGS = ("config", "workdir", "coordinator", "num_processes", "process_id")


class Command(NamedTuple):
    """What the command line asks for.

    Attributes:
      config: Config, not yet fitted to devices.
      workdir: str.
      processes: Processes.
      get_optimizer: the config file's own function, or None.
    """

    config: Config
    workdir: str
    processes: Processes = Processes()
    get_optimizer: Callable | None = None


def parse(argv, doc=""):
    """Reads the command line.

    Args:
      argv: list of str; argv[0] is the program.
      doc: what `--help` says first.

    Returns:
      Command.

    Raises:
      SettingError: an unknown flag or setting, a value of the wrong type, a config file that cannot be used.
      SystemExit: `--help` was asked for (status 0).
    """
    path, rest = _take_config(argv[1:])
    values = _defined()
    if any(arg in ("--help", "-h", "--helpfull", "-help") for arg in rest):
        _print_help(doc)
        raise SystemExit(0)
    if path is None:
        raise SettingError("config=None is no file: it says what to train. Give --config=configs/quickstart.py.")
    tree, get_optimizer = _load(path)
    _check_absl_flags(rest)
    _check_names(rest)
    program = [argv[0], *rest]
    try:
        config_flags.DEFINE_config_dict("config", tree, flag_values=values, sys_argv=program)
        extra = values(program)[1:]
    except (flags.Error, TypeError, ValueError, KeyError, AttributeError) as error:
        raise _flag_error(error) from error
    if extra:
        raise SettingError(f"{extra[0]} is not a flag: settings are given by name. Write --config.a.b=value.")
    if values.config.pipeline.stage_layers == ("",):  # how ml_collections reads an empty list
        values.config.pipeline.stage_layers = ()
    config, workdir = configs.resolve(values.config), _checked_workdir(values.workdir or default_workdir(path))
    _check_custom(config, path, get_optimizer)
    processes = find(values.coordinator, values.num_processes, values.process_id)
    return Command(config, workdir, processes, get_optimizer)


def _defined():
    values = flags.FlagValues()
    flags.DEFINE_string("workdir", None, "Folder for results. Default: runs/NAME for a config NAME.py.", values)
    flags.DEFINE_string("coordinator", None, "host:port of process 0, for a run of several processes.", values)
    flags.DEFINE_integer("num_processes", None, "Processes of the run.", flag_values=values)
    flags.DEFINE_integer("process_id", None, "This process's number, from 0.", flag_values=values)
    return values


def _check_custom(config, path, get_optimizer):
    custom = config.optimizer.name == "custom"
    if custom and not callable(get_optimizer):
        raise SettingError(
            f"optimizer.name=custom has no optimizer: {path} has no function get_optimizer(rate). Write one that "
            "returns an optax chain, or name a built-in optimizer."
        )


def read(values, argv, doc):
    """Reads the flags of a program without a config, in place.

    Args:
      values: absl's FlagValues, defined.
      argv: list of str; argv[0] is the program.
      doc: what `--help` says first.

    Raises:
      SettingError: an unknown flag, a value of the wrong type, an argument without a name.
      SystemExit: `--help` was asked for (status 0).
    """
    if any(arg.startswith("-") and arg.lstrip("-") in ("help", "h", "helpfull") for arg in argv[1:]):
        print(f"{doc.strip()}\n{values.get_help(include_special_flags=False)}")
        raise SystemExit(0)
    _check_absl_flags(argv[1:])
    known = f"The flags are --{', --'.join(values)}."
    try:
        extra = values(argv)[1:]
    except flags.Error as error:
        raise SettingError(f"{' '.join(str(error).split())}. {known}") from error
    if extra:
        raise SettingError(f"{extra[0]} is not a flag: settings are given by name. {known}")


def default_workdir(path):
    """runs/NAME for a config file NAME.py."""
    return os.path.join("runs", os.path.splitext(os.path.basename(path))[0])


def _checked_workdir(path):
    if os.path.exists(path) and not os.path.isdir(path):
        raise SettingError(f"workdir={path} is a file: a run writes several files into a folder. Name another folder.")
    return path


def _take_config(args):
    """(the file of the last --config=FILE or --config FILE, the other arguments)."""
    path, rest, args = None, [], list(args)
    while args:
        arg = args.pop(0)
        if arg in ("--config", "-config"):
            if not args:
                raise SettingError("config= names no file: it says what to train. Give --config=configs/quickstart.py.")
            path = args.pop(0)
        elif arg.startswith(("--config=", "-config=")):
            path = arg.split("=", 1)[1]
        else:
            rest.append(arg)
    return path, rest


def _load(path):
    """(the file's settings on top of the defaults, its get_optimizer or None)."""
    if not os.path.isfile(path):
        raise SettingError(f"config={path} is not a file: a config is a Python file with get_config(). Check the path.")
    try:
        names = runpy.run_path(path, run_name="config")
        found = names["get_config"]() if "get_config" in names else None
    except (Exception, SystemExit) as error:
        raise _file_error(path, error) from error
    if not isinstance(found, ConfigDict | dict):
        raise SettingError(
            f"config={path} has no get_config() that returns settings: the result is {type(found).__name__}. "
            "Start from jaxpar.config.base_config(), change it and return it."
        )
    tree = ConfigDict(configs.base_config().to_dict())  # typed, so that flags are parsed as their setting's type
    for name, value in _flat(found):
        _check_name(name)
        configs.check_type(name, value)
        tree.update_from_flattened_dict({name: value})
    return tree, names.get("get_optimizer")


def _flat(tree, prefix=""):
    for key, value in tree.items():
        if isinstance(value, ConfigDict | dict):
            _check_name(f"{prefix}{key}")
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _file_error(path, error):
    """A config file that fails, with the line that did."""
    error_file = traceback.extract_tb(error.__traceback__)[-1].filename
    if isinstance(error, SyntaxError):
        line, cause = error.lineno, error.msg
    else:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        line, cause = frames[-1].lineno if frames else "?", " ".join(str(error).replace("\\n", " ").split())
    missing = re.search(r"'(\w+)\\?'", str(error))
    if isinstance(error, AttributeError) and missing and "config_dict" in error_file:
        return SettingError(f"config={path} line {line}: {configs.unknown_setting(missing[1])}")
    return SettingError(
        f"config={path} cannot be used: line {line} raises {type(error).__name__} ({cause}). Correct it."
    )


def _check_absl_flags(args):
    """Refuses what absl itself would act on: flags from elsewhere, and faults that it would keep quiet about."""
    for arg in args:
        name = arg.lstrip("-").split("=", 1)[0]
        if arg.startswith("-") and name in ("undefok", "flagfile"):
            raise SettingError(
                f"--{name} is not a flag: every setting is in the config file or on the command line, and each is "
                "checked. Leave it out."
            )


def _check_names(args):
    for arg in args:
        stem = arg.lstrip("-")
        if not arg.startswith("-") or not stem.startswith(("config.", "noconfig.")):
            continue
        name = stem.split("=", 1)[0].split(".", 1)[1]
        if not name:
            raise SettingError(f"{arg} names no setting: nothing would read it. Write --config.a.b=value.")
        _check_name(name)
        inside = [known for known in configs.setting_names() if known.startswith(f"{name}.")]
        if inside:
            raise SettingError(
                f"{name} is a section: its settings are given one by one. Write --config.{inside[0]}=..."
            )


def _check_name(name):
    if name not in configs.setting_names():
        raise configs.unknown_setting(name)


def _flag_error(error):
    if isinstance(error, flags.UnrecognizedFlagError):
        near = configs.nearest(error.flagname, _FLAGS)
        return SettingError(
            f"--{error.flagname} is not a flag: the flags are --config=FILE, --config.a.b=value, --workdir=DIR, and "
            "--coordinator, --num_processes and --process_id. "
            f"{f'Did you mean --{near}?' if near else 'Leave it out.'}"
        )
    text = " ".join(str(error.args[0] if error.args else error).split())
    setting, _, cause = re.sub(r"^(Missing value for )?flag --(config\.)?", "", text).partition(": ")
    name = setting.split("=", 1)[0]
    what = configs.kind_of(name) if name in configs.setting_names() else "a value"
    cause = (f"it is not {what}" if "=" in setting else cause) or "it has no value"
    return SettingError(f"{setting} cannot be read: {cause}. Give {what}.")


def _print_help(doc):
    print(f"{doc.strip()}\n\nSettings and their defaults (--config.a.b=value; jaxpar/config.py says what they mean):\n")
    defaults = configs.base_config()
    for name in configs.setting_names():
        value = functools.reduce(getattr, name.split("."), defaults)
        if not isinstance(value, ConfigDict):
            print(f"  {name} = {value!r}")
