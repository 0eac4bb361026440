"""The equations of the closed contacts of one mode: forces, shared loads, and slow sliding."""
