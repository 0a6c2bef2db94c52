"""What our own tests use, shipped so that users can test with it too: a clock, a real Redis or a cluster of them, a fault proxy."""
