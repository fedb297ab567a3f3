"""Every fault at every moment in every mode, against a real deployment in a lab."""
