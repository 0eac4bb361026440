"""An attack on contacts: random impacts, systems and robots, judged by laws written apart.

`laws` and `rigid` are the judge: Coulomb's law for many points, and the rigid-body quantities it
needs, from the equations and from Pinocchio alone. `api` has the few calls to what is judged,
`machines` the random robots, `layouts` those of other kinds. Sizes: pytest runs few of each,
`pytest -m slow` more, and by hand, from the folder `tests`,

    python -m attack.impacts 20000
    python -m attack.systems 500
    python -m attack.systems 500 0 layouts laws
    python -m attack.built 2000
    python -m attack.squeezed 200
    python -m attack.branches 300
    python -m attack.edges 200
    python -m attack.gaps 50

print a table of many. Everything is seeded: case i is the same in every size.
"""
