"""Models by name: announced by a package, a function in a Python file, or a robot in YAML.

As the command line takes them::

    ball                    what a package has announced, see `plugins`
    go1                     a legged robot whose file comes with hybridctl, see `robot_files`
    my_robot.py:make        a function in a file
    robot.yaml              a robot, see `robot_file`, or a legged base, see `logs.base_file`

A function takes no argument, or a frozen dataclass of settings that extends `FilterSettings` and
has defaults, and returns a `FilterModel`. With settings that extend `BaseSettings` it returns a
`BaseModel`, the base of a legged robot, whose logs `filter` takes::

    @dataclass(frozen=True)
    class Settings(FilterSettings):
        friction: float = 0.3

    def make(settings: Settings) -> FilterModel: ...
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Generic, TypeVar, get_type_hints

from hybridctl.app import plugins
from hybridctl.app.robot_file import RobotSettings, load_robot
from hybridctl.base.checks import check_instance, check_member, quote
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.base.settings import load_configuration
from hybridctl.base.yaml_files import read_yaml
from hybridctl.estimation.filter_model import FilterModel, FilterSettings
from hybridctl.legged.estimator import BaseSettings
from hybridctl.logs.base_file import load_base
from hybridctl.logs.base_model import BaseModel

M = TypeVar("M", FilterModel, BaseModel)


@dataclass(frozen=True)
class ModelSource(Generic[M]):
    """A model by name: the type of its settings, and the function that makes it of them.

    given: settings by name that are not as the type has them.
    """

    name: str
    kind: type[M]
    settings: type[Any]
    function: Callable[..., M]
    given: Mapping[str, Any] = field(default_factory=dict)

    def configured(
        self,
        file: str | Path | None = None,
        assignments: Sequence[str] = (),
        given: Mapping[str, Any] = MappingProxyType({}),
    ) -> Any:
        """Return a model's settings, from a JSON file and `key=value`, see `load_configuration`."""
        return load_configuration(self.settings, file, assignments, {**self.given, **given})

    def make(self, settings: Any = None) -> M:
        """Return the model of these settings, by default those of the source.

        Raises `InputError` where the function returns something else.
        """
        arguments = [settings or self.configured()][
            : len(inspect.signature(self.function).parameters)
        ]
        made = check_instance(f"what {self.name!r} returns", self.function(*arguments), self.kind)
        return replace(made, name=self.name)


def find_model(text: str) -> ModelSource[FilterModel]:
    """Return the source of a filter model that a text names.

    Raises `InputError` for that of a legged base, and what `find_source` raises.
    """
    source = find_source(text)
    if source.kind is not FilterModel:
        raise InputError(f"model {text!r} is a legged base, which only `filter` takes, with a log")
    return source


def find_source(text: str) -> ModelSource[Any]:
    """Return the source that a text names; see this module.

    Raises `UnknownNameError` for what is none, with the names that there are, `FileFormatError`
    for a file that cannot be read or run, and `InputError` for a function of another kind.
    """
    path, colon, name = text.rpartition(":")
    if colon and path.endswith(".py"):
        module = _imported(Path(path))
        functions = [k for k, v in vars(module).items() if inspect.isfunction(v)]
        return _source(name, getattr(module, check_member(f"function in {path}", name, functions)))
    if text.endswith(".py"):
        raise InputError(f"model must name a function, as in {text}:NAME, got {quote(text)}")
    robots = plugins.robot_files()
    if text in robots or Path(text).suffix in (".yaml", ".yml"):
        text = str(robots.get(text, text))
        name, content = Path(text).stem, read_yaml(text, "model")
        if isinstance(content, Mapping) and "imu" in content:
            base = load_base(text, content)
            return ModelSource(name, BaseModel, BaseSettings, base.model, asdict(base.settings))
        robot = load_robot(text, content)
        return ModelSource(name, FilterModel, RobotSettings, robot.filter_model)
    check_member("model", text, [*plugins.names("models"), *robots])
    return _source(text, plugins.load("models", text))


def from_anywhere(text: str) -> str:
    """Return the model or experiment for processes that stand in another folder."""
    path, colon, name = text.rpartition(":")
    if colon and path.endswith(".py"):
        return f"{Path(path).absolute()}:{name}"
    return str(Path(text).absolute()) if Path(text).suffix in (".py", ".yaml", ".yml") else text


def experiment_module(group: str, text: str) -> Any:
    """Return the module of an entry point of a group, or a Python file with the same parts."""
    return _imported(Path(text)) if text.endswith(".py") else plugins.load(group, text)


def _source(name: str, function: Callable[..., Any]) -> ModelSource[Any]:
    parameters = list(inspect.signature(function).parameters)
    if not parameters:
        return ModelSource(name, FilterModel, FilterSettings, function)
    settings = get_type_hints(function).get(parameters[0])
    if len(parameters) == 1 and isinstance(settings, type):
        for kind, base in ((FilterModel, FilterSettings), (BaseModel, BaseSettings)):
            if issubclass(settings, base):
                return ModelSource(name, kind, settings, function)
    raise InputError(
        f"model {name!r} must be a function of one argument annotated with a subclass of "
        f"FilterSettings or BaseSettings, or of none, got {name}{inspect.signature(function)}"
    )


def _imported(path: Path) -> ModuleType:
    """Return the module in a file, known to Python by a name of its own."""
    if not path.is_file():
        raise InputError(f"model {str(path)!r} does not exist")
    name = f"hybridctl_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise FileFormatError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    return module
