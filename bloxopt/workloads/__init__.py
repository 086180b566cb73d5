"""Workloads: published traces, traces of your own, generated ones, and transformations of all of them."""

from bloxopt.workloads.formats import FORMATS
from bloxopt.workloads.generate import generate_trace
from bloxopt.workloads.load import load_trace
from bloxopt.workloads.shipped import TRACES, ShippedTrace, list_traces
from bloxopt.workloads.trace import Trace

__all__ = ["FORMATS", "TRACES", "ShippedTrace", "Trace", "generate_trace", "list_traces", "load_trace"]
