"""The modes of contacts that stay as they are: equations, accelerations, forces, guards."""
