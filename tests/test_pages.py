"""The pages in docs/: commands and settings that there are, links that lead somewhere, the same in both languages."""

import re
import shlex
from pathlib import Path

import pytest

from myxtts.apps.evaluation import command as evaluate
from myxtts.cli import doctor, models, say, train
from myxtts.config.config import XTTSConfig

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("*.md")])
PARSERS = {
    "convert": models.convert_parser,
    "doctor": doctor.build_parser,
    "evaluate": evaluate.build_parser,
    "export": models.export_parser,
    "launch": train.launch_parser,
    "plan": train.plan_parser,
    "prepare": train.prepare_parser,
    "push": models.push_parser,
    "say": say.build_parser,
    "train": train.build_parser,
}
IN_BOTH = (
    "data",
    "devices",
    "finetune",
    "migration",
    "optimizations",
    "python",
    "scaling",
    "speaking",
    "troubleshooting",
)


def commands(page):
    """The lines of a page's shell blocks, continued ones joined."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return "".join(blocks).replace("\\\n", " ").splitlines()


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


@pytest.mark.parametrize("name", ["troubleshooting", "migration", "finetune", "evaluation", "export", "scaling"])
def test_commands_of_a_page_are_understood(name):
    for line in commands(ROOT / f"docs/{name}.md"):
        words = shlex.split(line, comments=True)
        if words[:2] == ["pip", "install"]:
            continue
        if words[0] == "myxtts":
            parsed = PARSERS[words[1]]().parse_args(words[2:])
            if words[1] == "launch":
                train.build_parser().parse_args(parsed.command[parsed.command.index("train") + 1 :])
        else:
            assert words[0] == "python" and (ROOT / words[1]).is_file(), line


@pytest.mark.parametrize("name", IN_BOTH)
def test_both_languages_show_the_same_commands(name):
    english, persian = (commands(ROOT / f"docs/{name}{suffix}.md") for suffix in ("", ".fa"))
    assert english == persian


@pytest.mark.parametrize("name", ["troubleshooting", "migration", "scaling"])
def test_flags_and_settings_that_a_page_names_are_there(name):
    text = re.sub(r"```.*?```", "", (ROOT / f"docs/{name}.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    known = {flag for parser in PARSERS.values() for a in parser()._actions for flag in a.option_strings}
    assert set(re.findall(r"(--[a-z][a-z-]+)", text)) <= known
    settings = XTTSConfig().to_dict()
    for section, setting in re.findall(r"`(data|training)\.(\w+)", text):
        assert setting in settings[section] or setting == "learning_rate", (section, setting)


def test_messages_that_the_page_on_troubles_explains_are_said():
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    sources = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("myxtts/**/*.py"))
    for message in re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE):
        assert message.partition(" as damaged")[0] in sources, message
