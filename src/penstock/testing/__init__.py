"""What our own tests use, also for users' tests: a clock, a real Redis or a cluster of them, a fault proxy."""
