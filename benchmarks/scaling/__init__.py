"""Throughput of real models over more and more replicas, beside what was published."""
