"""Costs of all parts, in one process and one run, beside what they cannot do without."""

from __future__ import annotations

import argparse

from rich.console import Console

from benchmarks import (
    ball,
    bderivative,
    door,
    estimation,
    friction,
    gradients,
    legged,
    loop,
    predictive,
    quadruped,
    robots,
    terms,
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round")
    quick = parser.parse_args().quick
    effort = {"rounds": 1, "seconds": 0.01} if quick else {"rounds": 7, "seconds": 0.2}
    console = Console(width=100)
    console.print(ball.table_of_balls(effort))
    console.print(ball.table_of_batches(effort, 100 if quick else 1000))
    console.print(gradients.table_of_gradients(effort, 60 if quick else gradients.UNKNOWNS))
    console.print(gradients.table_of_new_values(effort))
    console.print(gradients.table_of_tosses(4 if quick else gradients.TOSSES))
    console.print(door.calls_table(effort))
    console.print(door.simulation_table(effort))
    console.print(loop.steps_table(quick))
    console.print(loop.filter_table(quick))
    console.print(legged.samples_table(quick))
    console.print(predictive.samples_table(quick))
    console.print(friction.calls_table(effort))
    console.print(friction.simulators_table(effort))
    console.print(friction.joints_table(effort))
    console.print(quadruped.calls_table(effort))
    console.print(quadruped.runs_table(effort))
    console.print(robots.landings_table(quick, console.print))
    console.print(estimation.table_of_filters(effort))
    console.print(terms.table_of_terms(effort))
    for each in bderivative.tables(effort):
        console.print(each)


if __name__ == "__main__":
    main()
