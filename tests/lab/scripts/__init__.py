"""Programs that run on a machine of the lab, each with an interpreter that has what it needs."""
