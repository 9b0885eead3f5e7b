"""Those who act in a simulated run: clients, group members, workers, administrators, dual writers."""
