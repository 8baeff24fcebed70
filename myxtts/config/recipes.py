"""The settings files that come with the package: `configs/` of a checkout, `myxtts/recipes/` where it is installed."""

from os import PathLike
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_PLACES = _PACKAGE / "recipes", _PACKAGE.parent / "configs"
RECIPES: Path = _PLACES[0] if _PLACES[0].is_dir() else _PLACES[1]
"""Folder of the recipes."""
SAMPLE = "sample.yaml"
"""What a run without data and without a configuration takes."""


def recipe_names() -> list[str]:
    """File names of the recipes, sorted."""
    return sorted(path.name for path in RECIPES.glob("*.yaml"))


def find_recipe(path: str | PathLike) -> Path:
    """The file that `--config` means: the one at `path`, else the recipe `NAME` or `configs/NAME`."""
    path = Path(path)
    is_recipe = path.name in recipe_names() and path.parent.as_posix() in (".", "configs")
    return RECIPES / path.name if is_recipe and not path.exists() else path
