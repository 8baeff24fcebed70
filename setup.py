"""Lists the packages to install and their data files. All other metadata is in pyproject.toml."""

from setuptools import find_packages, setup

RECIPES = "myxtts.recipes"
"""Package in which the files of `configs/` are installed; see `myxtts/config/config.py`."""

setup(
    packages=[*find_packages(include=["myxtts", "myxtts.*"]), RECIPES],
    package_dir={RECIPES: "configs"},
    package_data={
        RECIPES: ["*.yaml"],
        "myxtts": ["py.typed", "*.pyi"],
        "myxtts.bundled": ["*/*.json", "*/*.md", "*/*.safetensors", "*/*/*/*"],
        "myxtts.cli": ["*.toml"],
        "myxtts.config": ["*.toml"],
        "myxtts.apps.datasets": ["*.html", "*.toml"],
        "myxtts.apps.evaluation": ["*.html", "*.toml"],
        "myxtts.apps.server": ["*.html", "*.toml"],
        "myxtts.apps.studio": ["*.yaml", "*.css", "*.js"],
        "myxtts.interchange": ["*.md", "*.toml"],
        "myxtts.interchange.coqui": ["*.toml"],
        "myxtts.interchange.onnx": ["web/*", "*.toml"],
        "myxtts.data": ["*.toml"],
        "myxtts.data.corpora": ["*.toml"],
        "myxtts.memory": ["*.toml"],
        "myxtts.storage": ["*.toml"],
        "myxtts.text.languages": ["*.toml"],
    },
)
