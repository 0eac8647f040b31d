"""The command line: overrides, misspelt names, broken config files. Each fault is one SettingError."""

import pytest

from experiments._app import flags
from jaxpar.errors import SettingError


@pytest.fixture
def parse(tmp_path):
    """parse(body of get_config, *flags) -> (Config, workdir)."""

    def run(body, *args):
        path = tmp_path / "mine.py"
        path.write_text(
            f"from jaxpar.config import base_config\n\ndef get_config():\n    c = base_config()\n    {body}\n"
        )
        return flags.parse(["train", *args[:1], f"--config={path}", *args[1:]])

    return run


def test_flags_override_the_file_and_the_file_the_defaults(parse):
    config, workdir, *_ = parse(
        "c.model.width = 64; c.seed = 3; return c",
        "--config.seed=4",  # before --config= too
        "--config.pipeline.stage_layers=3,2",
        "--config.optimizer.peak_rate=1",
        "--noconfig.model.tie_embeddings",
        "--workdir=here",
    )
    assert (config.model.width, config.seed, config.pipeline.stage_layers) == (64, 4, (3, 2))
    assert config.optimizer.peak_rate == 1.0 and not config.model.tie_embeddings
    assert workdir == "here"
    assert parse("return c")[1] == "runs/mine"


def test_a_file_may_leave_settings_out_and_they_can_be_overridden(parse):
    config, *_ = parse("return {'model': {'width': 96}}", "--config.model.num_layers=7")
    assert (config.model.width, config.model.num_layers, config.model.num_heads) == (96, 7, 4)


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ("c.modle.width = 3", "line 5: modle is not a setting: nothing would read it. Did you mean model?"),
        ("c.model.widht = 3; return c", "Did you mean model.width?"),
        ("c.model.width = 'a'; return c", "model.width='a' is not a whole number"),
        ("c.model = 3; return c", "model=3 is not a section"),
        ("return {'modle': {'width': 3}}", "modle is not a setting"),
        ("return None", "has no get_config() that returns settings"),
        ("c.width =", "line 5 raises SyntaxError"),
        ("raise SystemExit(3)", "line 5 raises SystemExit (3)"),
        ("1 / 0", "line 5 raises ZeroDivisionError (division by zero)"),
        ("import nowhere", "line 5 raises ModuleNotFoundError"),
    ],
)
def test_broken_files(parse, body, part):
    with pytest.raises(SettingError) as caught:
        parse(body)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("flag", "part"),
    [
        ("--config.model.widht=3", "model.widht is not a setting: nothing would read it. Did you mean model.width?"),
        ("--config.modle.width=3", "Did you mean model.width?"),
        ("--config.model.width=abc", "model.width=abc cannot be read"),
        ("--config.model.width=1.5", "model.width=1.5 cannot be read"),
        ("--config.model.width", "model.width cannot be read: it has no value"),
        ("--config.model=3", "model is a section"),
        ("--config.optimizer.peak_rate=x", "optimizer.peak_rate=x cannot be read"),
        ("--config.model.tie_embeddings=maybe", "=maybe cannot be read: it is not True or False. Give True or False."),
        ("--config.pipeline.stage_layers=(,)", "stage_layers=(,) cannot be read: it is not a list of whole numbers."),
        ("--config.=3", "--config.=3 names no setting"),
        ("--undefok=foo", "--undefok is not a flag"),
        ("--flagfile=/nowhere", "--flagfile is not a flag"),
        ("-flagfile", "--flagfile is not a flag"),
        (f"--workdir={__file__}", "is a file: a run writes several files into a folder"),
        ("--config.model.width=-3", "model.width=-3 is not positive"),
        ("--config.pipeline.stage_layers=a", "is not a list of whole numbers"),
        ("--wrkdir=x", "Did you mean --workdir?"),
        ("--foo=x", "--foo is not a flag"),
        ("stray", "stray is not a flag"),
    ],
)
def test_bad_flags(parse, flag, part):
    with pytest.raises(SettingError) as caught:
        parse("return c", flag)
    assert part in str(caught.value)


@pytest.mark.parametrize("value", ["", "()", "[]"])
def test_an_empty_list_is_the_default_split(parse, value):
    config, *_ = parse("c.pipeline.stage_layers = (1, 3); return c", f"--config.pipeline.stage_layers={value}")
    assert config.pipeline.stage_layers == ()


def test_a_config_must_be_given_and_exist():
    with pytest.raises(SettingError, match="config=None"):
        flags.parse(["train"])
    with pytest.raises(SettingError, match="config=nowhere.py is not a file"):
        flags.parse(["train", "--config=nowhere.py"])
    with pytest.raises(SettingError, match="config= names no file"):
        flags.parse(["train", "--config"])


def test_help_lists_every_setting(capsys):
    with pytest.raises(SystemExit) as caught:
        flags.parse(["train", "--help"], "What it does.")
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith("What it does.") and "  pipeline.num_microbatches = 4\n" in out
