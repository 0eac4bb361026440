"""Program that unpacks an HDF5 file: `python hdf5_unpack.py SOURCE TARGET LIMIT HEADER`.

The HDF5 library (with h5py 3.16 still) can loop for ever, or crash, on a damaged file, and nothing
in its own process can stop it. `array_files.read_hdf5` therefore runs this file in another process,
with a time limit. It imports nothing of hybridctl, so as to start quickly. An error is written to
stderr in one line.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def unpack(source: str, target: str, limit: int, header: str) -> None:
    """Copy every dataset of numbers or text of an HDF5 file into an NPZ file.

    The NPZ holds `meta`, in JSON, and the datasets as a0, a1, ... in the order of `meta.names`.
    Links to other files are not followed. Arrays of MATLAB are transposed, because it stores
    columns first, and become vectors where they have a single row or column.

    Args:
        source: The HDF5 file.
        target: The NPZ file to write.
        limit: Largest size of all datasets together, in bytes.
        header: Attribute of the file that holds the header of a log of hybridctl.

    Raises:
        ValueError: The datasets are declared larger than the limit.
    """
    import h5py
    import numpy as np

    arrays: list[Any] = []
    meta: dict[str, Any] = {"names": [], "units": {}, "unusable": {}, "native": None}
    left = limit

    def copy_dataset(name: str, node: Any) -> None:
        nonlocal left
        # MATLAB keeps the contents of cells under #refs#, without their names.
        if not isinstance(node, h5py.Dataset) or name.startswith("#refs#"):
            return
        is_matlab = "MATLAB_class" in node.attrs
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
            if is_matlab:
                array = array.T.ravel() if 1 in array.shape else array.T
            arrays.append(array)
            meta["names"].append(name)
            if "unit" in node.attrs:
                meta["units"][name] = str(node.attrs["unit"])

    with h5py.File(source, "r") as file:
        native = file.attrs.get(header)
        meta["native"] = None if native is None else str(native)
        file.visititems(copy_dataset)
    content: dict[str, Any] = {f"a{k}": array for k, array in enumerate(arrays)}
    np.savez(target, meta=np.array(json.dumps(meta)), **content)


def main(arguments: list[str]) -> int:
    """Run the program.

    Args:
        arguments: Source, target, limit and header, see `unpack`.

    Returns:
        Exit code 0, or 1 with a line on stderr.
    """
    sys.path.pop(0)  # the folder of this file, whose neighbours are no top-level modules
    source, target, limit, header = arguments
    try:
        unpack(source, target, int(limit), header)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]  # characters that the reader quotes
        print(f"{type(error).__name__}: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
