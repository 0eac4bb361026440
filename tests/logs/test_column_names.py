"""Columns are found by their names, or by place where no name speaks against it."""

from itertools import permutations

import numpy as np
import pytest

from hybridctl import Series
from hybridctl.base.errors import UnknownNameError
from hybridctl.logs.column_names import find_columns, order_columns

JOINTS = ("hip", "knee", "ankle")


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize(
    "form", ["{}", "robot/{}_joint", "l_{}", "{}.position", "{}x", "{}_", "/a/{}"]
)
def test_a_column_is_never_another_joint(order, form):
    """Whatever the order and the spelling: the right column, or an error that names it."""
    found = [form.format(JOINTS[k]) for k in order]
    try:
        columns = order_columns("joints", JOINTS, found).columns
    except UnknownNameError as error:
        assert form != "{}"
        assert order != (0, 1, 2)
        labels = ", ".join(JOINTS[k] for k in order)
        assert form == "{}x" or f"labels: [{labels}]" in str(error)  # noqa: PT017
    else:
        assert [found[k] for k in columns] == [form.format(name) for name in JOINTS]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (("slide_x", "slide_y"), ("slide_y", "slidex")),
        (("slide_x", "slide_y"), ("slide_x", "other")),
        (("hip", "knee"), ("l_hip", "r_hip")),
        (("q1", "q2"), ("j2", "j1")),
        (("joint_1", "joint_2"), ("joint2", "joint1")),
        (("a", "b"), ("c", "d", "e")),
    ],
)
def test_names_that_match_in_part_are_refused(wanted, found):
    with pytest.raises(UnknownNameError, match="channel 'c' has no column") as caught:
        order_columns("c", wanted, found)
    assert "labels" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("wanted", "found", "is_by_position"),
    [
        (("x", "z"), ("across", "up"), True),
        (("x", "z"), ("0", "1"), False),
        (("x", "y", "z"), ("pos_x", "pos_y", "pos_z"), False),
        (("q1", "q2"), ("j1", "j2"), True),
    ],
)
def test_columns_by_place_where_no_name_is_against_it(wanted, found, is_by_position):
    order = order_columns("c", wanted, found)
    assert order.columns == list(range(len(wanted)))
    assert order.is_by_position == is_by_position


def test_a_prefix_that_all_names_share_is_said():
    wanted = [f"joint_{k}" for k in range(20)]
    with pytest.raises(UnknownNameError, match="without the prefix 'robot/'"):
        find_columns("joints", wanted, [f"robot/{name}" for name in wanted])


def test_a_record_says_that_columns_are_taken_by_place():
    from hybridctl.estimation.filter_model import LogChannel
    from hybridctl.logs import Log
    from hybridctl.logs.filter_record import _ChannelReader

    log = Log({"rails": Series(np.arange(3.0), np.eye(3)[:, :2], ("across", "up"), "m")})
    reader = _ChannelReader(log.channels, "log")
    reader.join_channels([LogChannel("rails", ("x", "z"), "m")])
    assert reader.notes == [
        "rails: columns across, up are taken as x, z by their place; `labels` in the mapping names "
        "them"
    ]
