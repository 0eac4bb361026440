"""The compiled kernel of contact modes: C that evaluates a mode, and takes whole steps of it.

`contact_kernel.h` says what it computes, and lists what is in each file; `module.c` and
`module_derivatives.c` are the calls from Python. It knows no robot; `kernel_mode` of
`mechanics/modes` gives it terms and lists of indices, and is its only user. `extension` finds it:
the extension is optional, and everything works without it.
"""
