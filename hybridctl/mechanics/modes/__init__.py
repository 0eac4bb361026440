"""Modes of contacts, by one pass down: terms, constraint equations, forces, acceleration, guards.

In the order of the pass (an arrow is an import):

- `phase`: which rows a mode constrains; made once.
- `constraint_equations`: M a + h = S u + J' f and C a = c at a point, with the system factorised.
- `force_distribution`: how redundant contacts share forces, and how multipliers change.
- `slip_directions`, `standstill`: directions of contacts that slide in a surface.
- `acceleration`: the pass itself, from rows to acceleration and forces of all contacts.
- `guards`, `jamming`: what ends the mode.
- `derivatives`: first order of all that by state and input.
- `dynamics`: robot, contacts and source of terms; `contact_mode`: the mode of the event loop.
- `selection`: the mode that a state flows on in.
- `mode_expressions`, `mode_functions`, `generated_mode`: the same pass as expressions, as functions
  of them, and as modes of small robots that call these.
"""
