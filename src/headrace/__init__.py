"""RL training for LLM agents in which every step is a Kafka topic.

The rooms beside this file are links to the folders of the same names at the top of the tree; a wheel holds them as they
are imported, `headrace.schemas`, `headrace.infra` and so on.
"""
