"""The project as a whole: imports point one way, the pages of docs/ stay true, the README runs."""

import ast
import importlib.util
import inspect
import re
from functools import reduce
from pathlib import Path

import pytest
import torch

from vri import VRI
from vri.core import objective
from vri.core.bilevel import HYPERGRADIENTS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

# Imports


LAYERS = {  # a module belongs to the longest name that begins it; what is not named is an application
    "vri.files": "files",
    "vri.core": "core",
    "vri.methods": "methods",
    "vri.noise": "data",
    "vri.backbones": "data",
    "vri.data": "data",
    "vri.training": "training",
    "vri.cli": "command line",
    "vri.__main__": "command line",
}
EVERYTHING = {*LAYERS.values(), "application"}
MAY_IMPORT = {
    "files": {"files"},
    "core": {"core"},
    "methods": {"core", "methods"},
    "data": {"files", "core", "data"},
    "training": {"files", "core", "methods", "data", "training"},
    "application": EVERYTHING - {"command line"},
    "command line": EVERYTHING,
}


def module_files() -> dict[str, Path]:
    files = {}
    for file in sorted((SOURCE / "vri").rglob("*.py")):
        parts = file.relative_to(SOURCE).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return files


def imports(name: str, file: Path, modules: dict[str, Path]) -> set[str]:
    """Modules of the package that `file` imports, anywhere in it."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, node.module] if node.module else above)
            for alias in node.names:  # `from vri import noise` imports a module, `from vri import VRI` a name
                full = f"{source}.{alias.name}"
                found.add(full if full in modules else source)
    return {f for f in found if f in modules}


def graph() -> dict[str, set[str]]:
    modules = module_files()
    return {name: imports(name, file, modules) for name, file in modules.items()}


def layer(module: str) -> str:
    names = [n for n in LAYERS if module == n or module.startswith(f"{n}.")]
    return LAYERS[max(names, key=len)] if names else "application"


def test_imports_point_one_way() -> None:
    wrong = [
        f"{name} ({layer(name)}) imports {other} ({layer(other)}); "
        f"the layer may import: {', '.join(sorted(MAY_IMPORT[layer(name)]))}"
        for name, others in graph().items()
        for other in sorted(others)
        if layer(other) not in MAY_IMPORT[layer(name)]
    ]
    assert wrong == []


def test_training_knows_no_method_by_name() -> None:
    found = {other for name, others in graph().items() if layer(name) == "training" for other in others}
    assert {name for name in found if layer(name) == "methods"} == {"vri.methods.base", "vri.methods.memory"}


def test_one_module_knows_torch_distributed() -> None:
    """No method, no equation and no data set hears of other processes."""
    knows = [
        name for name, file in module_files().items() if re.search(r"torch\.distributed|\bdist\.", file.read_text())
    ]
    assert knows == ["vri.training.distributed"]


def test_there_are_no_import_cycles() -> None:
    left = graph()
    while free := {name for name, others in left.items() if not others}:  # nothing left that they wait for
        left = {name: others - free for name, others in left.items() if name not in free}
    assert left == {}, f"these modules import each other in a circle, or one that does: {left}"


def test_the_layers_name_modules_that_exist() -> None:
    assert set(LAYERS) - set(module_files()) == set()


def test_the_import_reader_reads() -> None:
    """On imports known to be there; a reader that finds none would pass the tests above."""
    found = graph()
    assert {"vri.core.bilevel", "vri.core.model", "vri.methods.base"} <= found["vri.methods.meta"]
    assert "vri.cli" in found["vri.__main__"]
    assert {"vri.noise", "vri.methods"} <= found["vri"]


# docs


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def resolve(dotted: str) -> object:
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        return reduce(getattr, parts[length:], module)
    raise ModuleNotFoundError(dotted)


def keywords() -> set[str]:
    parameters = inspect.signature(VRI).parameters.values()
    return {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}


@pytest.mark.parametrize("name", ["equations.md", "deviations.md"])
def test_names_on_the_page_exist(name: str) -> None:
    text = page(name)
    dotted = set(re.findall(r"`(vri(?:\.\w+)+)", text))
    assert dotted
    missing = []
    for each in sorted(dotted):
        try:
            resolve(each)
        except (AttributeError, ModuleNotFoundError):
            missing.append(each)
    assert missing == []
    options = {k for call in re.findall(r"\bVRI\(([^)]*)\)", text) for k in re.findall(r"(\w+)\s*=", call)}
    assert options - keywords() == set()


def test_every_equation_has_a_row() -> None:
    model = ["ppd", "kl", "elbo", "reparam", "obj0", "obj1", "obj2"]
    updates = ["bilevel", "theta_step", "phi_update", "omega_update", "theta_update"]
    rows = [line.split("|") for line in page("equations.md").splitlines() if line.startswith("|")]
    missing = [
        label for label in [*model, *updates] if not any(f"`eq:{label}`" in row[1] and row[-2].strip() for row in rows)
    ]
    assert missing == []


def test_every_function_of_the_mathematics_is_on_the_page() -> None:
    public = [
        f"vri.core.objective.{name}"
        for name, member in inspect.getmembers(objective, inspect.isfunction)
        if member.__module__ == objective.__name__ and not name.startswith("_")
    ]
    assert len(public) >= 7
    public += [f"{f.__module__}.{f.__qualname__}" for f in HYPERGRADIENTS.values()]
    assert [name for name in public if f"`{name}`" not in page("equations.md")] == []


def test_every_choice_is_on_the_page_of_deviations() -> None:
    not_of_the_method = {"generator", "head", "feature_dim", "autocast", "hypergradient", "meta_optimizer"}
    text = page("deviations.md")
    named = {k for call in re.findall(r"\bVRI\(([^)]*)\)", text) for k in re.findall(r"(\w+)\s*=", call)}
    assert keywords() - not_of_the_method - named == set()


# README


def code_blocks(text: str) -> list[tuple[int, str]]:
    """First line and text of each block of Python that is not marked `<!-- no-run -->`."""
    pattern = r"^(<!-- no-run -->\s*\n)?```python[^\n]*\n(.*?)^```"
    found = re.finditer(pattern, text, re.MULTILINE | re.DOTALL)
    return [(text[: m.start(2)].count("\n") + 1, m[2]) for m in found if not m[1]]


def test_code_blocks_are_found() -> None:
    text = (
        "a\n```python\nx = 1\n```\n<!-- no-run -->\n```python\nno\n```\n```bash\nno\n```\n\n```python\ny = 2\nz\n```\n"
    )
    assert code_blocks(text) == [(3, "x = 1\n"), (14, "y = 2\nz\n")]


@pytest.mark.parametrize("page", ["README.md", "docs/classifier.md", "docs/from_cleanlab.md"])
def test_code_of_pages_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = code_blocks((ROOT / page).read_text())
    assert blocks
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "page"}
    with torch.random.fork_rng(devices=[]):
        for line, block in blocks:
            padded = "\n" * (line - 1) + block  # so that a traceback points into the page
            exec(compile(padded, str(ROOT / page), "exec"), namespace)


# the defaults are those of the search


def test_defaults_are_the_ones_the_search_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    script = ROOT / "benchmarks" / "defaults.py"
    monkeypatch.syspath_prepend(script.parent)
    spec = importlib.util.spec_from_file_location("defaults", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    keywords = inspect.signature(VRI).parameters
    searched = {name: value for name, value in module.BASE.items() if name != "meta_lr"}  # it follows the width now
    assert {name: keywords[name].default for name in searched} == searched
    assert (ROOT / "docs" / "defaults.md").read_text() == module.table(), (
        "docs/defaults.md is not what `python benchmarks/defaults.py --table` writes"
    )
