"""Studies of trainings from what they left: several trainings compared, and the time of a step by a trace."""
