"""What changes when guards fire: impacts, kicks, stops, and their derivatives."""
