"""The pages in docs/: existing commands and settings, valid links, and equal content in both languages."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from myxtts.__main__ import COMMANDS
from myxtts.cli.arguments import PlainParser
from myxtts.config.config import XTTSConfig
from utilities import walk_docs

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("*.md")])
IN_BOTH = {page.name[:-6] for page in PAGES if ".fa." in page.name} - {"README", "make-dataset"}
FILES = [*ROOT.glob("myxtts/**/*.py"), *ROOT.glob("utilities/**/*.py")]
SOURCES = "".join(path.read_text(encoding="utf-8") for path in FILES)


def parser_of(entry):
    """Returns the parser of a subcommand."""
    module, _, function = entry.partition(":")

    def parse_args(parser, *_):
        raise SystemExit(parser)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as found:
        patch.setattr(PlainParser, "parse_args", parse_args)
        getattr(importlib.import_module(module), function)([])
    return found.value.code


PARSERS = {name: parser_of(entry) for name, (entry, _) in COMMANDS.items()}


def commands(page):
    """Returns the lines of a page's shell blocks without comments; continuation lines are joined."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return re.sub(" +# .*", "", "".join(blocks)).replace("\\\n", " ").splitlines()


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_names_on_a_page_exist(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert "://" in target or (page.parent / target).exists(), target
    if page.name == "CHANGELOG.md":
        return  # It also names removed settings.
    assert commands(page) or "```sh" not in text
    for command in commands(page):
        words = shlex.split(command.rpartition("&& ")[2], comments=True)
        if words[0] == "myxtts" and words[1] in PARSERS:
            parsed = PARSERS[words[1]].parse_args(words[2:])
            if words[1] == "launch":
                PARSERS["train"].parse_args(parsed.command[parsed.command.index("train") + 1 :])
        elif words[0] == "python" and "/" in words[1]:
            assert words[1] == "exported/speak.py" or (ROOT / words[1]).is_file(), command
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    known = {flag for parser in PARSERS.values() for flag in parser._option_string_actions}
    flags = set(re.findall(r"(?<![\w-])(--[a-z][a-z0-9-]+)", text)) - known - {"--no-deps", "--fix", "--gpus-per-task"}
    assert [flag for flag in flags if f'"{flag}"' not in SOURCES] == []
    settings, named = XTTSConfig().to_dict(), re.findall(r"`(data|training)\.(\w+)", text)
    assert named or "`training." not in text
    for section, setting in named:
        assert setting in settings[section] or setting in ("learning_rate", "watching"), (section, setting)


@pytest.mark.parametrize("name", sorted(IN_BOTH))
def test_both_languages_show_the_same_commands(name):
    english, persian = (commands(ROOT / f"docs/{name}{suffix}.md") for suffix in ("", ".fa"))
    assert english == [command.replace("سلام، صبح بخیر.", "Good morning.") for command in persian]


@pytest.mark.parametrize("page", [page for page in PAGES if ".fa." in page.name], ids=lambda page: page.name)
def test_code_on_persian_pages_is_not_turned_round(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for before, code, after in re.findall("(\u200e?)`([^`]+)`(\u200e?)", text):
        inner = re.fullmatch(r"[A-Za-z0-9]|[A-Za-z0-9].*[A-Za-z0-9]", code, re.DOTALL)
        assert inner or (before and after), f"{code!r} needs a left-to-right mark (U+200E) on both sides"


def test_messages_on_the_troubleshooting_pages_exist():
    pages = [(ROOT / f"docs/troubleshooting{suffix}.md").read_text(encoding="utf-8") for suffix in ("", ".fa")]
    messages, in_persian = (re.findall("^\\| \\W*`([^`]+)`", page, re.MULTILINE) for page in pages)
    assert messages == in_persian and len(messages) >= 5
    assert [one for one in messages if one.partition(" as damaged")[0] not in SOURCES] == []


def test_printed_lines_are_compared_by_kinds_of_numbers():
    matches = walk_docs.matches
    assert matches("gpt  12.5 s, loss 4.66 …", "gpt 31.0 s, loss 4.71 in all")
    assert not any(matches(f"{line} clips", "3 clips") for line in ("4", "v3", "3.5"))
    assert not matches("loss 4.66", "loss 5.71") and not matches("1 x en_f2", "1 x en_f3")


def test_commands_of_the_pages_that_need_no_training_print_and_make_what_the_pages_show(tmp_path, capsys):
    pages = [page for page in walk_docs.PAGES if page != "speaking"]  # README has its one such command too
    assert walk_docs.main(["--work", str(tmp_path), "--quick", "--pages", *pages]) == 0
    assert capsys.readouterr().out.count(" ok ") >= 6
