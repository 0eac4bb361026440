"""The kernel's functions for wider registers compute the same to the bit as those without."""

import importlib.util
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from hybridctl.robots import public

import hybridctl.mechanics.kernel as kernel_package
from hybridctl.base.function_cache import find_compiler
from hybridctl.hybrid.laws import HeldInput
from hybridctl.hybrid.model import StepRequest
from hybridctl.mechanics.modes.contact_mode import ContactMode
from hybridctl.mechanics.modes.kernel_mode import ModeKernel
from hybridctl.mechanics.multibody.state import RobotStateSpace

installed = pytest.importorskip("hybridctl.mechanics.kernel._contact_kernel")
FLAGS = ("-O3", "-std=c11", "-fno-math-errno", "-ffp-contract=off", "-fPIC", "-shared")
"""Those of pyproject.toml that decide the numbers, and those of a shared library."""


def build_narrow(folder):
    """Return the extension compiled without functions for wider registers, in a file of its own."""
    sources = sorted(Path(kernel_package.__file__).parent.glob("*.c"))
    compiler = find_compiler()
    if compiler is None or not sources:
        pytest.skip("no C compiler, or no sources")
    target = folder / "_contact_kernel.so"
    include = f"-I{sysconfig.get_path('include')}"
    options = *FLAGS, "-DNARROW_REGISTERS", include
    command = [compiler, *options, *map(str, sources), "-o", str(target)]
    subprocess.run(command, check=True, capture_output=True)
    spec = importlib.util.spec_from_file_location("_contact_kernel", target)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def list_results(mode, states, inputs):
    """Values, derivatives and steps of a new kernel at some points, as arrays."""
    kernel, found = ModeKernel(mode), []
    for x, u in zip(states, inputs, strict=True):
        found += kernel.evaluate(x, u) or ()
        found += [part for part in kernel.differentiate(x, u) if part is not None]
        found += kernel.take_step(StepRequest(0.0, x, 1e-3, 1e-6, 1e-6), HeldInput(u)) or ()
    return [np.asarray(part) for part in found]


@pytest.mark.slow
def test_wider_registers_change_no_bit(tmp_path, monkeypatch):
    """Sticking, sliding and redundant contacts, on 18 and on 29 velocities.

    Where the processor or the compiler has no wider registers both are the same functions.
    """
    narrow, rng = build_narrow(tmp_path), np.random.default_rng(0)
    for name, modes in (
        ("solo12", ("stick",) * 4),
        ("solo12", ("slip", "stick", "open", "slip")),
        ("icub", ("stick",) * 8),
        ("icub", ("slip",) * 8),
        ("icub", ("stick", "open", "stick", "open", "slip", "slip", "slip", "slip")),
    ):
        system, start = public.system(name), public.start(name, 0.0)
        dynamics = system.mode(modes).dynamics
        mode, robot = ContactMode(dynamics, modes, RobotStateSpace(dynamics.robot)), dynamics.robot
        states, inputs = [], 0.5 * rng.normal(size=(4, mode.nu))
        for _ in inputs:
            q = robot.integrate(start[: robot.nq], 0.02 * rng.normal(size=robot.nv))
            states.append(mode.project(np.concatenate((q, 0.1 * rng.normal(size=robot.nv)))))
        wide = list_results(mode, states, inputs)
        with monkeypatch.context() as patch:
            patch.setattr(installed, "Kernel", narrow.Kernel)
            assert isinstance(ModeKernel(mode)._kernel, narrow.Kernel)
            same = list_results(mode, states, inputs)
        assert len(wide) == len(same) > 4 * len(states)
        for one, other in zip(wide, same, strict=True):
            assert one.tobytes() == other.tobytes()
