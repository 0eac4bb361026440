"""Laws of the door on MuJoCo plants: contact that takes time, sensors, delays, model errors."""
