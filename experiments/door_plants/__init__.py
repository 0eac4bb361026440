"""The door on plants that are not ours: contact that takes time, sensors, delays, model errors."""
