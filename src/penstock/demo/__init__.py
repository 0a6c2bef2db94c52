"""The parts of the demo: a Spark project, producers of clicks, the check of the result, and a picture."""
