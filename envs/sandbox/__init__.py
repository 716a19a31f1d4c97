"""Runs code that nobody has read in boxes of Linux namespaces. Programs in a box import this: keep it empty."""
