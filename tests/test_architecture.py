"""The layers of the package, kept by a machine: imports go downward only."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate
from pathlib import Path

import pytest

import hybridctl

PACKAGE = Path(hybridctl.__file__).parent
ROOT = Path(__file__).parents[1]
LAYERS = [
    {"base"},
    {"hybrid"},
    {"sensitivity"},
    {"symbolic"},
    {"mechanics"},
    {"control", "estimation", "gradients"},
    {"legged", "planning"},
    {"orbits", "relaxation", "sampling"},
    {"interop", "logs"},
    {"app", "app.heartbeat", "app.mode_colors", "app.python_files", "app.robot_list"},
    {"app.plots", "app.report", "app.robot_file"},
    {"app.experiment", "app.robot_run"},
    {"app.models", "app.page", "app.sweep_result"},
    {"app.view"},
    {"app.run_page"},
    {"app.commands"},
    {"experiments", "robots"},
    {"app.sweep"},
    {"app.cli"},
    {"__init__", "__main__", "errors", "files", "workers"},  # the last three are for users
]
MECHANICS = [
    {"contact_law", "kernel", "multibody"},
    {"contacts"},
    {"terms"},
    {"modes"},
    {"impacts"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
HOME = {
    "casadi": {
        "base/compilable.py",
        "base/function_cache.py",
        "legged/compiled_formulas.py",
        "planning/closure.py",
        "planning/collocation.py",
        "planning/event_orders.py",
        "planning/horizon_functions.py",
        "planning/implicit_phases.py",
        "planning/ipopt_search.py",
        "planning/phase_functions.py",
        "planning/start_inputs.py",
        "planning/task_checks.py",
        "planning/transcription.py",
        "planning/transition_cost.py",
        "relaxation/contacts.py",
        "symbolic/compiled_function.py",
        "symbolic/compiled_reset.py",
        "symbolic/compiled_step.py",
        "symbolic/expression_mode.py",
        "symbolic/formula.py",
        "symbolic/systems.py",
        "mechanics/multibody/expressions.py",
        "mechanics/terms/contact_expressions.py",
        "mechanics/contacts/stairs.py",
        "mechanics/contacts/surfaces.py",
        "mechanics/terms/expression_terms.py",
        "mechanics/modes/mode_functions.py",
        "mechanics/impacts/impact_expressions.py",
        "mechanics/modes/implicit_expressions.py",
        "mechanics/modes/mode_expressions.py",
    },
    "coal": {"mechanics/contacts/found_contacts.py", "mechanics/multibody/urdf.py"},
    "matplotlib": {"app/plots/panels.py", "app/plots/picture_files.py"},
    "mujoco": {"mechanics/multibody/mjcf.py"},
    "pinocchio": {
        "legged/rotation.py",
        "mechanics/multibody/mjcf.py",
        "mechanics/multibody/rigid_model.py",
        "mechanics/multibody/robot.py",
        "mechanics/multibody/sweeps.py",
        "mechanics/multibody/urdf.py",
        "mechanics/multibody/urdf_arrival.py",
    },
}
HEAVY = {"casadi", "matplotlib", "mujoco", "numpy", "pinocchio", "scipy"}
LOADERS = ("__import__", "import_module")
FILES = sorted(
    path
    for path in PACKAGE.rglob("*.py")
    if path.relative_to(PACKAGE).parts[0] not in ("experiments", "robots")
)


def name_of(path):
    return path.relative_to(PACKAGE).as_posix()


def imported(path):
    """Dotted names of everything a file imports, wherever in the file, by `import_module` too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in LOADERS:
            assert isinstance(node.args[0], ast.Constant), f"{path} loads what cannot be told"
            yield node.args[0].value


def part_of(path):
    return part_named(*path.relative_to(PACKAGE).with_suffix("").parts)


def part_named(top, *below):
    """The room of a module: in `app` each file and folder is one of its own."""
    return f"app.{below[0]}" if top == "app" and below and below[0] != "__init__" else top


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_file_has_a_layer_and_imports_only_from_below(path):
    own = part_of(path)
    assert own in RANK, f"{own} has no layer"
    for name in imported(path):
        top, *rest = name.split(".")
        if top != "hybridctl" or rest[0] == "__version__":
            continue
        room = part_named(*rest)
        below = room == own or RANK[room] < RANK[own]
        assert below, f"{name_of(path)} imports {name}, which is not below it"


ANNEXES = {"orbits", "relaxation", "sampling"}


def rooms_imported(path):
    """The rooms of the package, beside its own, that a file imports from."""
    names = [name.split(".") for name in imported(path)]
    return {part_named(*rest) for top, *rest in names if top == "hybridctl"} - {part_of(path)}


def test_only_the_application_imports_an_annex():
    """No room below needs one, and none needs another: each can be left out."""
    users = {name_of(path) for path in FILES if ANNEXES & rooms_imported(path)}
    assert [name for name in sorted(users) if not name.startswith(("app/", "__init__"))] == []


def foreign_private_names(tree):
    """Private names that a module imports, or reads from objects of other modules."""
    own = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("self", "cls")
    }
    own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    own |= {"_replace", "_asdict", "_fields"}  # of named tuples
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            yield from (alias.name for alias in node.names if alias.name.startswith("_"))
        elif isinstance(node, ast.Attribute) and node.attr not in own:
            is_private = node.attr.startswith("_") and not node.attr.endswith("__")
            yield from [node.attr] if is_private else []


@pytest.mark.parametrize("annex", sorted(ANNEXES))
def test_an_annex_uses_what_is_public_of_the_rooms_below(annex):
    for path in sorted((PACKAGE / annex).rglob("*.py")):
        found = set(foreign_private_names(ast.parse(path.read_text(encoding="utf-8"))))
        assert found == set(), f"{name_of(path)} uses {found}"


def test_private_names_of_others_are_found():
    code = "from a import _b\nself._c = d._e\nf._c\ng._replace(h=1)\nd.__class__\n"
    assert list(foreign_private_names(ast.parse(code))) == ["_b", "_e"]


def test_what_is_loaded_by_its_name_counts_as_imported(tmp_path):
    """It would be an arrow up that nobody sees; a name that is computed is refused."""
    file = tmp_path / "a.py"
    file.write_text('import importlib\nimportlib.import_module("hybridctl.app.plots")\n')
    assert list(imported(file)) == ["importlib", "hybridctl.app.plots"]
    file.write_text('__import__("hybridctl." + "app")\n')
    with pytest.raises(AssertionError, match="cannot be told"):
        list(imported(file))


def test_rooms_of_mechanics_import_only_from_below():
    """Files beside the folders stand above all of them."""
    rank = {name: k for k, layer in enumerate(MECHANICS) for name in layer}

    def floor(room):
        return rank.get(room, len(MECHANICS))

    for path in (PACKAGE / "mechanics").rglob("*.py"):
        own = path.relative_to(PACKAGE / "mechanics").with_suffix("").parts[0]
        for name in imported(path):
            top, *below = name.split(".")
            if (top, *below[:1]) == ("hybridctl", "mechanics"):
                room = below[1]
                lower = floor(room) < floor(own) or room == own or own not in rank
                assert lower, f"{name_of(path)} imports {name}"


def circle_of(below):
    """The files of a circle, in its order, of what each file imports; none without one."""
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_files_import_each_other_in_a_circle():
    """Imports for types and within functions count: they tie files together as others do."""
    homes = {}
    for part in ("hybridctl", "experiments", "robots"):
        for path in (ROOT / part).rglob("*.py"):
            dotted = path.relative_to(ROOT).as_posix().removesuffix(".py").replace("/", ".")
            name = dotted if part == "hybridctl" else f"hybridctl.{dotted}"
            homes[name.removesuffix(".__init__")] = path

    def home(name):
        parts = list(accumulate(name.split("."), "{}.{}".format))
        return next((homes[part] for part in reversed(parts) if part in homes), None)

    files = homes.values()
    below = {path: {home(name) for name in imported(path)} - {None, path} for path in files}
    assert circle_of(below) == []
    assert circle_of({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


@pytest.mark.parametrize("library", sorted(HOME))
def test_a_heavy_library_has_a_home(library):
    users = [
        name_of(path) for path in FILES if library in {n.split(".")[0] for n in imported(path)}
    ]
    assert set(users) <= HOME[library]


def lines_of_code(tree):
    """The lines that hold code: explanations do not make a file too long.

    A list of imported names is one line, however many the formatter makes of it.
    """
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node):
            docstrings |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    ends = [(n.lineno, n.end_lineno) for n in ast.walk(tree) if hasattr(n, "lineno")]
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = {line for node in imports for line in range(node.lineno + 1, node.end_lineno + 1)}
    return {line for both in ends for line in both} - docstrings - names


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_functions_fit_a_screen_and_files_a_sitting(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert len(lines_of_code(tree)) <= 400
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            start = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            assert node.end_lineno - start.lineno < 60, node.name


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_and_public_parts_say_what_they_are(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), "the module has no docstring"
    for node in tree.body:
        named = isinstance(node, ast.ClassDef | ast.FunctionDef)
        if named and not node.name.startswith("_") and "@overload" not in ast.unparse(node):
            assert ast.get_docstring(node), f"{node.name} has no docstring"


def rooms_with_checked_docstrings():
    """The rooms that pyproject.toml lists for ruff's rules of docstrings."""
    listed = re.search(r'"!hybridctl/\{(.*?)\}/', (ROOT / "pyproject.toml").read_text())
    assert listed is not None
    return set(filter(None, listed[1].split(",")))


def public_functions(tree):
    """Pairs (function, docstring that explains its arguments) of all that users may call."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node, ast.get_docstring(node)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for part in node.body:
                if isinstance(part, ast.FunctionDef):
                    # The arguments of a constructor are explained by its class.
                    documented = node if part.name == "__init__" else part
                    yield part, ast.get_docstring(documented)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_arguments_of_public_functions_are_explained(path):
    """Ruff compares a section `Args:` that is there; that it is there is checked here."""
    if not any(name_of(path).startswith(f"{room}/") for room in rooms_with_checked_docstrings()):
        return
    for function, text in public_functions(ast.parse(path.read_text(encoding="utf-8"))):
        named = [a.arg for a in (*function.args.args, *function.args.kwonlyargs)]
        named = [name for name in named if name not in ("self", "cls", "message")]
        hidden = function.name.startswith("_") and function.name != "__init__"
        # Options of a command are explained by click, and its docstring is the text of --help.
        is_command = any(".command(" in ast.unparse(one) for one in function.decorator_list)
        is_overload = "@overload" in ast.unparse(function)
        if hidden or is_command or is_overload or len(named) < 2:
            continue
        if "\n" not in (text or "") and len(named) < 3:
            continue  # one line may name two arguments by their letters: "Return x + dx."
        # Keywords of errors are explained as attributes.
        explained = re.findall(r"^ {4}\**(\w+):", text or "", re.M)
        assert set(named) <= set(explained), f"{function.name} does not explain {named}"


@pytest.mark.parametrize(
    "module",
    ["hybridctl", *("hybridctl.app.cli" for path in FILES if name_of(path) == "app/cli.py")],
)
def test_starting_does_not_load_the_numerical_libraries(module):
    code = f"import sys, {module}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=PACKAGE.parent,
    )
    assert (result.returncode, result.stdout.strip()) == (0, ""), result.stderr


def test_every_public_name_can_be_imported_and_a_wrong_one_not():
    for name in hybridctl.__all__:
        assert getattr(hybridctl, name) is not None
    assert set(hybridctl.__all__) <= set(dir(hybridctl))
    with pytest.raises(AttributeError, match="simulat"):
        hybridctl.simulat  # noqa: B018


def test_a_class_name_stands_for_one_thing():
    """Nested classes too; the settings of each experiment alone are called `Config` in all."""
    homes = defaultdict(list)
    for part in ("hybridctl", "experiments", "robots"):
        for path in (ROOT / part).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and node.name != "Config":
                    homes[node.name].append(path.relative_to(ROOT).as_posix())
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_the_wheel_is_made_of_every_folder_with_modules():
    listed = re.search(r"^packages = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.M | re.S)
    assert listed is not None
    folders = {
        path.parent.relative_to(ROOT).as_posix()
        for part in ("hybridctl", "experiments", "robots")
        for path in (ROOT / part).rglob("*.py")
    }
    wanted = {
        re.sub("^(?=experiments|robots)", "hybridctl.", folder.replace("/", "."))
        for folder in folders
    }
    assert set(re.findall(r'"(.*?)"', listed[1])) == wanted
