"""`headrace autoscale`: sets the number of rollout workers by the trainers' wait."""
