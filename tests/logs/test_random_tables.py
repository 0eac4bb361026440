"""Tables in many layouts: each is read exactly, or refused by the name of what is wrong."""

import numpy as np
import pytest
from logs.random_tables import START, write_random_table

from hybridctl.base.errors import InputError
from hybridctl.logs import examine, read_log

FEW, MANY = 25, 200


def check_table(path, seed):
    """Return whether a table was read; a table that cannot be taken in two ways must be."""
    truth = write_random_table(path, seed)
    log, refusal = None, ""
    try:
        log = read_log(path)
    except InputError as error:
        refusal = str(error)
    if log is None:
        assert truth.may_be_refused, (seed, refusal, truth.story)
        assert str(path) in refusal
        assert len(refusal.splitlines()) <= 3
        return False
    said = " ".join(examine(log).warnings)
    offset = 1e-9 * (log.origin_ns - START) if log.origin_ns else 0.0
    for name, values in truth.columns.items():
        where = f"{seed} {name} {truth.story}"
        if name not in log:  # left out by name, or a column without any value
            assert name in said, where
            assert truth.may_be_refused or np.isnan(values).all(), where
            continue
        times, found = log[name].times + offset, log[name].values[:, 0]
        rows = np.abs(truth.times[:, None] - times).argmin(axis=0)
        # Floats of today's seconds resolve 2.4e-7 s; stamps are 5 ms apart at least.
        np.testing.assert_allclose(truth.times[rows], times, atol=1e-6, err_msg=where)
        # One rounding by the factor of the unit.
        np.testing.assert_allclose(found, values[rows], rtol=3e-16, atol=0, err_msg=where)
        left = np.setdiff1d(np.arange(len(values)), rows)  # whose only cell is empty
        assert np.isnan(values[left]).all(), where
    return True


@pytest.mark.parametrize(
    "seeds", [range(FEW), pytest.param(range(FEW, MANY), marks=pytest.mark.slow)]
)
def test_a_random_table_is_read_exactly_or_refused_by_name(tmp_path, seeds):
    read = [check_table(tmp_path / f"{seed}.csv", seed) for seed in seeds]
    assert sum(read) > 0.7 * len(read)
