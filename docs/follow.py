"""Follows pages of the documentation as a reader would: python docs/follow.py PAGE [PAGE...]

Blocks of Python are one script up to the next command, whose files the later ones use. Commands
that install something are left out. Each page is followed in the present folder, with the Python
and the commands of the environment in which this file runs; nothing else of the checkout is used.
"""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

BLOCK = re.compile(r"^```(python|sh)(?: (\w+))?\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


def blocks(page):
    """Kind and code of each block of a page whose library is there.

    A block that begins with "```python torch" needs that library; without it, it is left out.
    """
    found = BLOCK.findall(Path(page).read_text())
    return [(kind, code) for kind, needs, code in found if not needs or find_spec(needs)]


def follow(page):
    """Run the blocks of a page; `SystemExit` with what was printed where one fails."""
    script = []
    for kind, code in blocks(page):
        if kind == "python":
            script.append(code)
        elif not code.startswith("pip install"):
            if script:
                _called(page, [sys.executable, "-c", "\n".join(script)])
            _called(page, ["bash", "-ec", code.replace(" --open", "")])
    if script:
        _called(page, [sys.executable, "-c", "\n".join(script)])


def _called(page, command):
    environment = os.environ | {"MPLBACKEND": "agg"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    if done.returncode:
        raise SystemExit(f"{page}: {' '.join(command)}\n{done.stdout}\n{done.stderr}")


if __name__ == "__main__":
    for path in sys.argv[1:]:
        follow(path)
        print(f"{path}: followed")
