"""What pages show, as JSON: a function a page or a part of it. Each is also a live stream (live.py)."""
