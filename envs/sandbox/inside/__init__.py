"""What runs inside a box, as its first process: it imports nothing but light modules of the standard library."""
