"""Runs that are killed in folders with files of other people, which must all be there afterwards.

`crash_points` kills a run before each of its operations on files, one after the other, and again
during the start that follows. `attack` runs commands in folders with random content and kills them
at random times. Both run in processes of their own: `python -m attack.folders crash STRIDE
[AGAIN]` and
`python -m attack.folders attack COUNT SEED`, in `tests`.
"""

import json
import logging
import os
import random
import re
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from hybridctl.base.errors import HybridctlError
from hybridctl.base.journal import Journal
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.run_marker import EARLIER, LOCK, MARKER, Marker

OPERATIONS = {"open", "os.link", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate"}
UNFINISHED = re.compile(r"-[0-9a-f]{32}[^/]*$")
FOREIGN = {".git/HEAD": "ref", "figures/notes.txt": "mine", "thesis.tex": "years of work"}
FILES = ("config.json", "figures/a.png", "summary.json")


class StopError(Exception):
    """Ends a run that is to fail."""


def content(folder):
    """The text of all regular files in a folder, by name; of links where they lead."""
    found = {}
    for place, folders, names in os.walk(folder):
        for name in [*names, *(f for f in folders if Path(place, f).is_symlink())]:
            path = Path(place, name)
            key = path.relative_to(folder).as_posix()
            found[key] = os.readlink(path) if path.is_symlink() else path.read_bytes().decode("l1")
    return found


def place(folder, files):
    """Write files of other people."""
    for name, text in files.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def run_into(folder, tag, *, overwrite=False, fails=False, journal=False):
    """A run that writes `FILES`, and a journal with a result, with the tag in each."""
    record = "runs.jsonl" if journal else None
    with RunFolder("e", folder, overwrite=overwrite, resumes=record) as run:
        if journal:
            Journal(run / "runs.jsonl", {"tag": tag}).put("one", (tag,))
        for name in FILES:
            run.write_text(name, f"{tag} {name}")
        if fails:
            raise StopError


def in_child(action, kill_before=None, root=None):
    """Exit code of an action in a forked process, 9 where it was killed.

    kill_before: number of the operation on files below `root` before which it is killed.
    """
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code, counted = 0, 0

    def count(event, arguments):
        nonlocal counted
        if event not in OPERATIONS or not str(arguments[0]).startswith(str(root)):
            return
        if counted == kill_before:
            os._exit(9)
        counted += 1

    try:
        logging.getLogger("hybridctl").setLevel("CRITICAL")
        if kill_before is not None:
            sys.addaudithook(count)
        action()
    except (HybridctlError, StopError):
        code = 1
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 3
    os._exit(code)


def check_foreign(folder, files, where):
    """Raise AssertionError where a file of other people is not as it was."""
    found = content(folder)
    for name, text in files.items():
        assert found.get(name) == text, f"{where}: {name} was {text!r}, is {found.get(name)!r}"


def tags(folder):
    """The tags of the visible files that are not foreign, by folder."""
    found = {}
    for name, text in content(folder).items():
        if name in FOREIGN or name.split("/")[-1] in (MARKER, LOCK):
            continue
        top = name.split("/")[0] if name.startswith(("interrupted", EARLIER)) else ""
        tag = json.loads(text.splitlines()[0])["tag"] if "jsonl" in name else text.split(" ")[0]
        found.setdefault(top, {}).setdefault(tag, set()).add(name.removeprefix(f"{top}/"))
    return found


SCENARIOS = {
    "ends": {},
    "fails": {"fails": True},
    "journal ends": {"journal": True},
    "journal fails": {"journal": True, "fails": True},
}


def crash_points(stride=1, again_every=None):
    """Kill a run that replaces another before its operations on files; returns how many kills.

    stride: every so many operations a run is killed. again_every: after every so many kills the
    next start is killed too, before each of its operations.
    """
    kills = 0
    for name, options in SCENARIOS.items():
        for first in range(0, 10_000, stride):
            found = killed_at(name, options, (first,))
            kills += found
            if not found:
                break
            second = 0
            while again_every is not None and first % again_every == 0:
                found = killed_at(name, options, (first, second))
                kills += found
                if found < 2:
                    break
                second += 1
    return kills


def killed_at(name, options, points):
    """Kill a run, and the next start where there is a second point; returns how many kills."""
    whole = {*FILES, *(["runs.jsonl"] if options.get("journal") else [])}
    where = f"{name}, killed before operations {points}"
    with TemporaryDirectory() as scratch:
        folder = Path(scratch, "out")
        run_into(folder, "old", journal=options.get("journal", False))
        place(folder, FOREIGN)
        actions = [
            partial(run_into, folder, "new", overwrite=True, **options),
            partial(RunFolder, "e", folder),
        ]
        kills = 0
        for action, point in zip(actions, points, strict=False):
            code = in_child(action, point, folder)
            assert code in (0, 1, 9), f"{where}: {code}"
            kills += code == 9
            check_foreign(folder, FOREIGN, where)
        check_ends(folder, whole, where)
        return kills


def check_ends(folder, whole, where):
    """Check that the next start finds one whole run, and can replace it."""
    in_child(lambda: RunFolder("e", folder))
    check_foreign(folder, FOREIGN, where)
    found = tags(folder)
    assert found[""] in ({"old": whole}, {"new": whole}), f"{where}: {found}"
    if found[""] == {"new": whole}:
        assert Marker.read(folder).finished, where
    assert in_child(lambda: run_into(folder, "last", overwrite=True)) == 0, where
    check_foreign(folder, FOREIGN, where)
    assert tags(folder)[""] == {"last": set(FILES)}, f"{where}: {tags(folder)}"
    assert not os.path.lexists(folder / EARLIER), where


EXPERIMENT = '''
"""Writes some files."""
import time
from dataclasses import dataclass
from hybridctl.app.experiment import open_journal
SUMMARY, RECORD = "files", "runs.jsonl"

@dataclass(frozen=True)
class Config:
    speed: float = 1.0
    workers: int = 1

def quick(config):
    return config

def run(config, folder, console):
    record = open_journal(folder / RECORD, config)
    folder.write_configuration(config, seed=None)
    for k in range(5):
        time.sleep(0.003)
        if record.get(str(k)) is None:
            record.put(str(k), (config.speed,))
        folder.write_text(f"figures/{k}.txt", f"{config.speed} {k}")
    if config.speed < 0.0:
        raise ValueError("fails")
    folder.write_json("summary.json", {"speed": config.speed})
    return {"speed": config.speed}
'''
NAMES = (
    *("thesis.tex", "data.csv", ".git/HEAD", ".git/objects/ab", ".gitignore", "src/main.py"),
    *("figures/0.txt", "figures/mine.png", "figures/sweep.png", "config.json", "summary.json"),
    *("index.html", "table.csv", "sweep.jsonl", "runs.jsonl", "log.npz", "truth.npz", "notes.md"),
    *("estimates.csv", "interrupted/a", f"{EARLIER}/a", f"{EARLIER}/config.json", "identify.jsonl"),
)


def commands(folder, script, log, chance):
    """A random command into the folder."""
    from hybridctl.app import cli
    from hybridctl.app.sweep import sweep

    speed = chance.choice(("1.0", "2.0", "-1.0"))
    cheap = [
        ["simulate", script, "--set", f"speed={speed}"],
        ["tune", script, "--set", f"speed={speed}"],
        ["sweep", script, "--vary", f"speed=1,2,{speed}"],
        ["sweep", script, "--vary", f"speed={speed}"],
        "hc.sweep",
        ["record", "ball", "--set", "duration=0.2"],
    ]
    dear = [
        ["simulate", "slope", "--quick"],
        ["filter", str(log), "--model", "ball"],
        ["filter", "--model", "ball", "--set", "duration=0.3"],
        ["validate", "biped", "--quick"],
        ["identify", str(log), "--model", "ball", "--parameters", "restitution"],
    ]
    chosen = chance.choice(dear if chance.random() < 0.15 else cheap)
    over = chance.random() < 0.5
    if chosen == "hc.sweep":
        return lambda: sweep(abs_slowly, {"x": [1.0, float(speed)]}, out=folder, overwrite=over)
    arguments = [*chosen, "--out", str(folder), *(["--overwrite"] if over else [])]
    return lambda: cli.cli(arguments, standalone_mode=False)


def abs_slowly(x):
    """The absolute value."""
    time.sleep(0.004)
    return abs(x)


def change(folder, files, chance):
    """Put files of other people into a folder, change some that are there, or put links."""
    for _ in range(chance.randint(0, 2)):
        name = chance.choice(NAMES)
        if chance.random() < 0.2 and Path(folder).is_dir():
            own = set(content(folder)) - set(files) - {MARKER, LOCK}
            # A file that was killed while it was written is the run's by its random name alone.
            name = chance.choice(sorted(n for n in own if not UNFINISHED.search(n)) or [name])
        path = Path(folder, name)
        with suppress(FileExistsError, NotADirectoryError):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_symlink() or path.is_dir():
                continue
            text = f"{chance.random()}"
            if chance.random() < 0.1:
                path.unlink(missing_ok=True)
                target = Path(folder).parent / f"outside-{text}"
                target.write_text(text)
                path.symlink_to(target)
                text = str(target)
            else:
                path.write_text(text)
            files[name] = text


def attacked(number, scratch, script, log):
    """Run commands in one folder, killing most; returns how many ran, and how many were killed."""
    chance = random.Random(number)
    folder, files = Path(scratch, f"out-{number}"), {}
    ran = killed = 0
    for step in range(chance.randint(3, 6)):
        if step or chance.random() < 0.3:
            change(folder, files, chance)
        command = commands(folder, script, log, chance)
        child = os.fork()
        if not child:
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            code = 0
            try:
                command()
            except BaseException:
                code = 1
            os._exit(code)
        ran += 1
        if chance.random() < 0.7:
            time.sleep(chance.choice((0.02, 0.1, 0.5)) * chance.random())
            with suppress(ProcessLookupError):
                os.kill(child, chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGINT)))
        killed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) < 0
        check_foreign(folder, files, f"folder {number}, step {step}")
        for outside in Path(scratch).glob("outside-*"):
            assert outside.name == f"outside-{outside.read_text()}", f"{number}: {outside}"
    return ran, killed, len(files)


def attack(count, seed):
    """Attack folders; returns the numbers of runs, of kills and of foreign files."""
    from hybridctl.app import cli

    with TemporaryDirectory() as scratch:
        script, log = Path(scratch, "script.py"), Path(scratch, "log.npz")
        script.write_text(EXPERIMENT)
        cli.cli(
            ["record", "ball", "--set", "duration=0.3", "--out", str(log)], standalone_mode=False
        )
        rows = [attacked(seed + k, scratch, str(script), log) for k in range(count)]
    return [sum(column) for column in zip(*rows, strict=True)]


def main():
    """Print what was done; an error ends with its traceback."""
    if sys.argv[1] == "crash":
        print(crash_points(*map(int, sys.argv[2:])))
    else:
        print(*attack(int(sys.argv[2]), int(sys.argv[3])))


if __name__ == "__main__":
    main()
