"""A program of its own that unpacks an HDF5 file into an NPZ: `python hdf5_unpack.py IN OUT LIMIT`.

The HDF5 library can loop for ever, or crash, on a damaged file, and nothing in its own process
can stop it. The reader therefore runs this file in another process, with a time limit. It imports
nothing of hybridctl, so as to start quickly. What is wrong goes to stderr in one line.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def unpack(source: str, target: str, limit: int, header: str) -> None:
    """Copy every dataset of numbers or text; `limit` bounds their bytes in all.

    The NPZ holds `meta`, in JSON, and the datasets as a0, a1, ... in the order of `meta.names`.
    Links to other files are not followed. What MATLAB has written is turned into its own order of
    rows and columns, and columns alone into vectors.
    """
    import h5py
    import numpy as np

    arrays: list[Any] = []
    meta: dict[str, Any] = {"names": [], "units": {}, "unusable": {}, "native": None}
    left = limit

    def visit(name: str, node: Any) -> None:
        nonlocal left
        if not isinstance(node, h5py.Dataset) or name.startswith("#refs#"):
            return
        matlab = "MATLAB_class" in node.attrs
        text = h5py.check_string_dtype(node.dtype) is not None
        if node.shape is None or (node.dtype.kind not in "biuf" and not text):
            meta["unusable"][name] = f"its type is {node.dtype}"
        elif node.external or node.is_virtual:
            meta["unusable"][name] = "its data are in other files"
        else:
            size = node.size * node.dtype.itemsize
            left -= size
            if left < 0:
                raise ValueError(f"dataset {name!r} is declared as {size} bytes, too many")
            array = np.asarray(node.asstr()[()], str) if text else np.asarray(node[()])
            if matlab:
                array = array.T.ravel() if 1 in array.shape else array.T
            arrays.append(array)
            meta["names"].append(name)
            if "unit" in node.attrs:
                meta["units"][name] = str(node.attrs["unit"])

    with h5py.File(source, "r") as file:
        native = file.attrs.get(header)
        meta["native"] = None if native is None else str(native)
        file.visititems(visit)
    content: dict[str, Any] = {f"a{k}": array for k, array in enumerate(arrays)}
    np.savez(target, meta=np.array(json.dumps(meta)), **content)


def main(arguments: list[str]) -> int:
    """Exit code 0, or 1 with a line on stderr."""
    sys.path.pop(0)  # the folder of this file, whose neighbours are no top-level modules
    source, target, limit, header = arguments
    try:
        unpack(source, target, int(limit), header)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        print(f"{type(error).__name__}: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
