"""Models by name: announced by a package, a function in a Python file, or a robot in YAML.

As the command line takes them::

    ball                    what a package has announced, see `plugins`
    go1                     a legged robot whose file comes with hybridctl, see `list_robot_files`
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

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar, get_type_hints

from hybridctl.app.python_files import import_file
from hybridctl.app.robot_file import RobotSettings, load_robot
from hybridctl.app.robot_list import list_robot_files
from hybridctl.base import plugins
from hybridctl.base.checks import check_instance, check_member, quote
from hybridctl.base.errors import InputError
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

    Attributes:
        name: Its name, which the made model gets, too.
        kind: `FilterModel`, or `BaseModel` for the base of a legged robot.
        settings: Type of its settings, a dataclass. For the YAML file of a legged base it is
            `BaseSettings`, whose fields without a default are in `given`.
        function: Function of these settings, or of no argument, that returns the model.
        given: Settings by name that replace the defaults of the type: all of them for the YAML file
            of a legged base, none for other models.
    """

    name: str
    kind: type[M]
    settings: type[Any]
    function: Callable[..., M]
    given: Mapping[str, Any] = field(default_factory=dict)

    def configure(
        self,
        file: str | Path | None = None,
        assignments: Sequence[str] = (),
        given: Mapping[str, Any] = MappingProxyType({}),
    ) -> Any:
        """Return settings of the model.

        Assignments win over the file, the file over the argument `given`, that over the attribute
        `given`, and last are the defaults of the type.

        Args:
            file: JSON file with settings; None without one.
            assignments: Texts `key=value`.
            given: Settings by name.

        Raises:
            InputError: A setting does not have the type or the range of the model's settings, or
                one without a default has no value.
            UnknownNameError: The model has no such setting.
            FileFormatError: The file cannot be read, or holds no JSON object.
        """
        return load_configuration(self.settings, file, assignments, {**self.given, **given})

    def make(self, settings: Any = None) -> M:
        """Return the model, under the name of this source.

        Args:
            settings: Its settings; if None, those that `configure` returns. A function without
                arguments does not get them.

        Raises:
            InputError: The function returns something else than a model of this kind.
        """
        # One argument or none, as the function has.
        arguments = [settings or self.configure()][
            : len(inspect.signature(self.function).parameters)
        ]
        made = check_instance(f"what {self.name!r} returns", self.function(*arguments), self.kind)
        # Users know the model by the name that they asked for, whichever the function gave it.
        return replace(made, name=self.name)


def find_model(text: str) -> ModelSource[FilterModel]:
    """Return the source of a filter model.

    Args:
        text: Text that names it, see this module.

    Raises:
        InputError: It names the base of a legged robot, a file that does not exist, a Python file
            without a function, or a function with other arguments than a model's. What the function
            returns is checked by `ModelSource.make`.
        UnknownNameError: There is no such model, or no such function in the file.
        FileFormatError: A file cannot be read or run.
    """
    source = find_source(text)
    if source.kind is not FilterModel:
        raise InputError(f"model {text!r} is a legged base, which only `filter` takes, with a log")
    return source


def find_source(text: str) -> ModelSource[Any]:
    """Return the source of a filter model or of a legged base.

    A YAML file with the key "imu" describes a legged base, any other a robot.

    Args:
        text: Text that names it, see this module.

    Raises:
        InputError: It names a file that does not exist, a Python file without a function, or a
            function with other arguments than a model's. What the function returns is checked by
            `ModelSource.make`.
        UnknownNameError: There is no such model, or no such function in the file; the message lists
            those that there are.
        FileFormatError: A file cannot be read or run.
    """
    path, colon, name = text.rpartition(":")
    if colon and path.endswith(".py"):
        module = import_file(Path(path), "model")
        functions = [k for k, v in vars(module).items() if inspect.isfunction(v)]
        return _inspect_function(
            name, getattr(module, check_member(f"function in {path}", name, functions))
        )
    if text.endswith(".py"):
        raise InputError(f"model must name a function, as in {text}:NAME, got {quote(text)}")
    robots = list_robot_files()
    if text in robots or Path(text).suffix in (".yaml", ".yml"):
        text = str(robots.get(text, text))
        name, content = Path(text).stem, read_yaml(text, "model")
        if isinstance(content, Mapping) and "imu" in content:
            base = load_base(text, content)
            # All settings, as those without a default come from the file alone.
            return ModelSource(name, BaseModel, BaseSettings, base.model, asdict(base.settings))
        robot = load_robot(text, content)
        return ModelSource(name, FilterModel, RobotSettings, robot.filter_model)
    check_member("model", text, [*plugins.list_plugins("models"), *robots])
    return _inspect_function(text, plugins.load_plugin("models", text))


def make_absolute(text: str) -> str:
    """Return the name of a model or experiment, with the path of its file made absolute.

    Processes with another working folder would not find a relative path. Names without a file stay
    as they are.

    Args:
        text: PATH.py:NAME, a path that ends in .py, .yaml or .yml, or a name.
    """
    path, colon, name = text.rpartition(":")
    if colon and path.endswith(".py"):
        return f"{Path(path).absolute()}:{name}"
    return str(Path(text).absolute()) if Path(text).suffix in (".py", ".yaml", ".yml") else text


def _inspect_function(name: str, function: Callable[..., Any]) -> ModelSource[Any]:
    """Return the source of the model that a function makes.

    The function is not called. The type by which its only argument is annotated determines what it
    makes; without an argument it makes a `FilterModel`.

    Args:
        name: Name of the model.
        function: Function of no argument, or of one, a subclass of `FilterSettings` (for a
            `FilterModel`) or of `BaseSettings` (for a `BaseModel`).

    Raises:
        InputError: The function has other arguments, or one without such an annotation.
    """
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
