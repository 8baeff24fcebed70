"""Every third-party import in the syntax tree is declared in an extra of its folder."""

import ast
import functools
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS_OF_FOLDER = {"myxtts": (), "utilities": ("bench",), "tests": ("test", "datasets")}
"""Extras of each folder, whose packages its files may import anywhere, besides the project's `dependencies`."""
FRONT_ENDS = {"myxtts/apps/server/": "server", "myxtts/apps/studio/": "ui"}
"""Folders that need an extra, and the extra; their `__main__.py` reports if it is not installed."""
OPTIONAL = ("sample", "languages", "datasets", "recordings", "hub", "ui", "server", "ray", "onnx", "eval")
"""Extras that `myxtts/` imports inside functions only, with an error that says what to install."""
DISTRIBUTIONS = {"yaml": "pyyaml", "pynvml": "nvidia-ml-py"}
"""Distributions of modules with another name; other names differ at most by case and by `-` for `_`."""
IMPORTED_BY_OTHERS = {"tensorboard": "tf.summary writes with it"}
"""Dependencies that no file here imports, and why they are declared."""
REFERENCE = ("torch", "TTS", "transformers")
ELSEWHERE = {"utilities/benchmarks/reference_worker.py": REFERENCE, "utilities/parity/make_reference.py": REFERENCE}
"""Files that run in the reference implementation's environment, whose packages are in none of our extras."""
"""Functions whose first argument is the name of a module to import."""


def canonical(name):
    """The normalized name of a distribution (PyPA, "Names and normalization")."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(project, *extras):
    """Returns the canonical names of the dependencies and of the packages of extras, including nested extras."""
    optional = project.get("optional-dependencies", {})
    pending, found = [*project["dependencies"], *(one for extra in extras for one in optional.get(extra, ()))], set()
    while pending:
        name, own = re.match(r"([\w.-]+)(?:\[([^\]]*)\])?", pending.pop()).groups()
        if name == project["name"]:
            pending += [one for extra in own.split(",") for one in optional[extra.strip()]]
        else:
            found.add(canonical(name))
    return found


@functools.cache
def imports(path):
    """Returns `[(line, top module, whether inside a function)]` of all imports of a file, also by a function call."""
    found, pending = [], [(ast.parse(path.read_text(encoding="utf-8")), False)]
    while pending:
        node, inside = pending.pop()
        inside = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        pending += [(child, inside) for child in ast.iter_child_nodes(node)]
        names = []
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", None))
            names = [node.args[0].value] if called in ("import_module", "importorskip") else []
        found += ((node.lineno, name.partition(".")[0], inside) for name in names)
    return found


def undeclared_imports(root):
    """Third-party imports below `root` that no extra of their folder declares, as `file:line what`."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = declared({**project, "dependencies": []}, *OPTIONAL)
    ours = {"myxtts", "utilities", "tests"}
    ours |= {path.stem for folder in ("utilities", "tests") for path in root.glob(f"{folder}/**/*.py")}
    for folder, extras in EXTRAS_OF_FOLDER.items():
        allowed = declared(project, *extras)
        for path in sorted(root.glob(f"{folder}/**/*.py")):
            name = path.relative_to(root).as_posix()
            for line, module, in_function in imports(path):
                distribution = canonical(DISTRIBUTIONS.get(module, module))
                if module in sys.stdlib_module_names or module in ours or module in ELSEWHERE.get(name, ()):
                    continue
                front = next((front for front in FRONT_ENDS if name.startswith(front)), None)
                if front and path.name != "__main__.py" and distribution in declared(project, FRONT_ENDS[front]):
                    continue
                if distribution in allowed or (folder == "myxtts" and in_function and distribution in optional):
                    continue
                where = " outside a function, of an optional extra" if distribution in optional else ""
                yield f"{name}:{line} imports {module}{where}; declare it in {', '.join(extras) or 'dependencies'}"


def unused_dependencies(root):
    """Dependencies that nothing in `myxtts/` imports."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    modules = {module for path in root.glob("myxtts/**/*.py") for _, module, _ in imports(path)}
    used = {canonical(DISTRIBUTIONS.get(module, module)) for module in modules}
    return declared(project) - used - set(IMPORTED_BY_OTHERS)


def test_every_import_is_declared_and_every_dependency_is_imported():
    assert list(undeclared_imports(ROOT)) == []
    assert unused_dependencies(ROOT) == set()
