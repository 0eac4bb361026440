"""The terms of a robot in contact at a point: mass, drive, and rows of all contacts.

`contact_terms` is what the equations of motion need of them, with the rows of joints; `sources`
chooses where they come from, and has the measurements: `flat_terms` and `general_terms` by
Pinocchio, `expression_terms` by CasADi from `contact_expressions`.
"""
