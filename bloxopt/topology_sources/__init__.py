"""Readers of topologies that other tools write: ``nvidia-smi topo -m``, Slurm's topology.conf and topology.yaml."""
