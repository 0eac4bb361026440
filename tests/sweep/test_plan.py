"""A sweep has one unit for each combination of settings and each seed."""

import pytest

from hybridctl.app.sweep import parse_axis, plan_units
from hybridctl.base import plugins
from hybridctl.base.errors import InputError, UnknownNameError


def base(name="slope"):
    return plugins.load_plugin("experiments", name).Config()


def test_values_are_even_or_listed():
    assert parse_axis("a=0:1:5") == ("a", [0.0, 0.25, 0.5, 0.75, 1.0])
    assert parse_axis("a.b=1,2.5,soft,true") == ("a.b", [1, 2.5, "soft", True])
    assert parse_axis("a=3:9:1") == ("a", [3.0])


@pytest.mark.parametrize("text", ["a", "=1", "a=", "a=1:2", "a=1:2:0", "a=x:2:3", "a=0:inf:3"])
def test_what_is_no_list_of_values_is_refused(text):
    with pytest.raises(InputError, match="vary must"):
        parse_axis(text)


def test_units_are_all_combinations_the_last_changing_fastest():
    units = plan_units("slope", base(), ["speed=0:1:2", "restitution=0.5,0.6,0.7"], None)
    assert [tuple(u.varied.values()) for u in units] == [
        (v, e) for v in (0.0, 1.0) for e in (0.5, 0.6, 0.7)
    ]
    assert len({u.key for u in units}) == 6
    assert units[0].settings["friction_low"] == base().friction_low


def test_the_name_of_a_unit_depends_on_its_settings_alone():
    first, second = (plan_units("slope", base(), [v], None) for v in ("speed=0:1:2", "speed=1:0:2"))
    assert [u.key for u in first] == [u.key for u in reversed(second)]


def test_seeds_count_from_that_of_the_settings():
    units = plan_units("saltation", base("saltation"), [], 3)
    assert [u.varied["seed"] for u in units] == [1, 2, 3]
    with pytest.raises(
        UnknownNameError, match=r"slope has no setting 'seed'.*did you mean 'speed'"
    ):
        plan_units("slope", base(), [], 2)


def test_nested_settings_have_dotted_names_and_whole_numbers_stay_whole():
    units = plan_units("rrr-door", base("rrr-door"), ["robot.hinge_damping=10:20:2"], None)
    assert [u.settings["robot"]["hinge_damping"] for u in units] == [10.0, 20.0]
    (unit,) = plan_units("saltation", base("saltation"), ["seed=4:4:1"], None)
    assert unit.settings["seed"] == 4
    assert isinstance(unit.settings["seed"], int)


def test_bad_settings_are_refused_before_anything_runs():
    with pytest.raises(InputError, match="got neither"):
        plan_units("slope", base(), [], None)
    with pytest.raises(UnknownNameError, match="did you mean 'friction_low'"):
        plan_units("slope", base(), ["friction_lo=0:1:2"], None)
    with pytest.raises(InputError, match="restitution"):
        plan_units("slope", base(), ["restitution=0:2:3"], None)
    with pytest.raises(InputError, match="seeds"):
        plan_units("saltation", base("saltation"), [], 0)
