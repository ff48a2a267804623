"""Throughput of real models as replicas increase, beside the published figures."""
